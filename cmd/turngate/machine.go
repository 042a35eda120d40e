package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/enroll"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/desktop"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/machine"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// machineFlags name the machines of the backend machine.
type machineFlags struct{ machines string }

func (f *machineFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.machines, "machines", "", "machines of the machine sandbox, comma-separated (default: all)")
}

// check returns all errors in these flags.
func (f *machineFlags) check() error {
	for _, name := range splitList(f.machines) {
		if err := schema.CheckToken("machine", name); err != nil {
			return flagOf("machines", err)
		}
	}
	return nil
}

// settings returns the machines for a worker with these sandboxes. close ends their
// lines.
func (f *machineFlags) settings(b *broker.Broker, wid, sandboxNames string) (m sandboxes.Machines, release func(), err error) {
	names := splitList(f.machines)
	asked := len(names) > 0
	for _, name := range splitList(sandboxNames) {
		asked = asked || name == "machine"
	}
	if !asked {
		return m, func() {}, nil
	}
	fleet, err := machines.NewFleet(b, wid, line.DefaultTiming())
	if err != nil {
		return m, nil, err
	}
	return sandboxes.Machines{Fleet: fleet, Names: names}, fleet.Close, nil
}

func machineAccess() access {
	return access{"machine", func(s string) error { return schema.CheckToken("machine", s) }, (*broker.Keyring).AddMachine, (*broker.Keyring).RemoveMachine}
}

func machineCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "machine",
		Short: "Make hosts without an inbound port places for sandboxes",
		Long:  "A machine dials out to NATS and takes sandboxes of workers with --sandboxes machine.",
	}
	cmd.AddCommand(machineServeCommand(), machineListCommand(), machineExecCommand(), machineShellCommand(), machineCopyCommand(), accessCommand(machineAccess, true), accessCommand(machineAccess, false))
	cmd.AddCommand(machineScreenshotCommand(), machineInputCommand(), machineMCPCommand())
	cmd.AddCommand(machineEnrollCommand(), machineRequestsCommand(), machineApproveCommand(), machineDenyCommand())
	return cmd
}

type machineServeFlags struct {
	nats      natsFlags
	name      string
	state     string
	workspace string
	// unconfined lets commands run in the workspace without a sandbox.
	unconfined bool
	// desktop is a display, or envDisplay; none: it is not offered.
	desktop string
	// desktopInput is the owner's consent to the use of its pointer and keyboard.
	desktopInput bool
	slots        int
	grace        time.Duration
	monitor      metricsFlags
}

// envDisplay is the display that the environment names.
const envDisplay = "$DISPLAY"

func machineServeCommand() *cobra.Command {
	f := &machineServeFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Take sandboxes from workers over NATS until SIGTERM",
		Long: "Connect to NATS and make local sandboxes on this host for workers with --sandboxes machine. This host needs no inbound port.\n\n" +
			"After SIGTERM it takes no more sandboxes, and gives those that run the time of --grace.",
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			var alone error
			if f.unconfined && f.workspace == "" {
				alone = usage("--unconfined needs --workspace, the folder in which commands run")
			}
			return usageOf(atLeast("grace", f.grace, 0), flagOf("name", f.check()), alone, f.checkDesktop(), f.monitor.check("metrics"))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve(cmd) },
	}
	f.nats.add(cmd, defaultURL)
	fl := cmd.Flags()
	fl.StringVar(&f.name, "name", "", "name of the machine (default: that of a credential machine-NAME.nk)")
	fl.StringVar(&f.state, "state", filepath.Join(stateDir(), "machine"), "folder for the machine's files")
	fl.StringVar(&f.workspace, "workspace", "", "folder in which holders of the admin's credential may run commands and copy files, see turngate machine exec; without --unconfined not one of root")
	fl.BoolVar(&f.unconfined, "unconfined", false, "run the commands in --workspace without a sandbox, as the user of this process: they can do all that this user can. Rollouts never run so")
	fl.StringVar(&f.desktop, "desktop", "", "display that holders of the admin's credential see, as --desktop=:1; --desktop alone: that of DISPLAY")
	fl.Lookup("desktop").NoOptDefVal = envDisplay
	fl.BoolVar(&f.desktopInput, "desktop-input", false, "they also use the pointer and the keyboard of --desktop, with all rights of the person who is logged in there")
	fl.Var(newCount(&f.slots, runtime.NumCPU()), "slots", "sandboxes at once (default: one for each CPU)")
	fl.DurationVar(&f.grace, "grace", 30*time.Second, "how long running sandboxes may go on after SIGTERM")
	f.monitor.add(fl)
	return cmd
}

// machineName returns the name of the machine.
func (f *machineServeFlags) machineName() string {
	if f.name != "" {
		return f.name
	}
	if role, name := broker.RoleOf(f.nats.creds); role == broker.RoleMachine {
		return name
	}
	return ""
}

func (f *machineServeFlags) check() error {
	if f.name == "" {
		return nil
	}
	return schema.CheckToken("machine", f.name)
}

func (f *machineServeFlags) checkDesktop() error {
	if f.desktop == "" {
		if f.desktopInput {
			return usage("--desktop-input needs --desktop, the display to use")
		}
		return nil
	}
	if f.desktop == envDisplay {
		return nil
	}
	_, err := desktop.ParseDisplay(f.desktop)
	return flagOf("desktop", err)
}

// screen returns the display that is offered, and notes that it is missing.
func (f *machineServeFlags) screen(ctx context.Context, missing map[string]string) *desktop.Desktop {
	if !f.desktopInput {
		missing[schema.CanInput] = "its owner started it without --desktop-input"
	}
	if f.desktop == "" {
		missing[schema.CanDesktop] = "its owner started it without --desktop"
		return nil
	}
	name := f.desktop
	if name == envDisplay {
		if name = os.Getenv("DISPLAY"); name == "" {
			missing[schema.CanDesktop] = "no display: DISPLAY is not set, and --desktop names none"
			return nil
		}
	}
	screen := desktop.New(name, f.desktopInput)
	if err := screen.Check(ctx); err != nil {
		missing[schema.CanDesktop] = oneLine(err.Error(), 500)
	}
	return screen
}

func (f *machineServeFlags) serve(cmd *cobra.Command) error {
	ctx, name := cmd.Context(), f.machineName()
	if name == "" {
		return usage("--name: want the name in the machine's credential, or a credential of `turngate machine add NAME`")
	}
	helper, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	state, err := machine.Open(f.state)
	if err != nil {
		return err
	}
	defer state.Close()
	self, err := f.describe(ctx, name, helper, state)
	if err != nil {
		return err
	}
	screen := f.screen(ctx, self.Missing)
	log := newLogger(cmd, zerolog.InfoLevel)
	monitor, err := f.monitor.begin(log)
	if err != nil {
		return err
	}
	defer monitor.close()
	lines := monitor.lines(self.Slots)
	if screen != nil {
		screen.Answered = lines.Operated
	}
	check, err := enroll.NewCheck(f.nats.url, name, f.nats.creds)
	if err != nil {
		check = nil // another kind of credential; dial reports the error in it
	}
	b, err := f.nats.dial(ctx, broker.RoleMachine, name, log)
	if err != nil {
		if check != nil && errors.Is(check.Ask(ctx), enroll.ErrRevoked) {
			return enroll.ErrRevoked
		}
		return err
	}
	defer b.Close()
	end := make(chan error, 1)
	if check != nil {
		watched, stop := context.WithCancel(ctx)
		var watching sync.WaitGroup
		defer watching.Wait()
		defer stop()
		watching.Go(func() { watchKey(watched, b, check, end) })
	}
	m := &machines.Machine{
		Broker: b, Timing: line.DefaultTiming(), Self: self, Measure: state.Measure, Grace: f.grace, End: end, Counts: lines,
		Start: func(want string, stream *os.File) (machines.Process, error) {
			if want == schema.CanDesktop {
				return machines.InProcess(context.WithoutCancel(ctx), stream, screen.Serve)
			}
			args := []string{f.state}
			if want == schema.CanWorkspace {
				args = append(args, f.workspace)
				if f.unconfined {
					args = append(args, far.Unconfined)
				}
			}
			p, err := far.Start(helper, args, stream)
			if err != nil {
				return machines.Process{}, err
			}
			return machines.Process{Kill: p.Kill, Wait: func() schema.LineEnd {
				status, says := p.Wait()
				return schema.LineEnd{Status: status, Text: says}
			}}, nil
		},
	}
	for capability, reason := range self.Missing {
		if capability == schema.CanWorkspace || capability == schema.CanConfine || capability == schema.CanInput || capability == schema.CanDesktop && f.desktop == "" {
			continue // not asked for
		}
		log.Warn().Str("capability", capability).Str("reason", reason).Msg("the machine lacks a capability")
	}
	if f.unconfined {
		log.Warn().Str("workspace", f.workspace).Int("user", os.Geteuid()).Msg("commands in the workspace run without a sandbox, with all rights of this user")
	}
	log.Info().Str("machine", name).Str("instance", self.Instance).Int("slots", self.Slots).Msg("the machine is ready")
	monitor.ready(until(ctx, connected(b)))
	return m.Serve(ctx)
}

// watchKey gives ErrRevoked to end if the server has shut out the machine. A server where
// no host can enroll does not tell; then the machine tries to connect until it is stopped.
func watchKey(ctx context.Context, b *broker.Broker, check *enroll.Check, end chan<- error) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !b.Connected() && errors.Is(check.Ask(ctx), enroll.ErrRevoked) {
			end <- enroll.ErrRevoked
			return
		}
	}
}

// describe returns the announcement of this machine.
func (f *machineServeFlags) describe(ctx context.Context, name, helper string, state *machine.State) (self schema.Machine, err error) {
	epoch, err := state.Epoch(time.Now())
	if err != nil {
		return self, err
	}
	digest, err := far.Digest(helper)
	if err != nil {
		return self, err
	}
	self = schema.Machine{
		Machine: name, Instance: machines.InstanceOf(epoch, randomHex(4)), Epoch: epoch, Version: version, Program: digest, Protocol: schema.LineProtocol,
		System: runtime.GOOS + "/" + runtime.GOARCH, Slots: f.slots, Missing: map[string]string{},
	}
	sandbox := &local.Backend{Helper: helper, StateDir: filepath.Join(f.state, "state")}
	if err := sandbox.Check(ctx); err != nil {
		self.Missing[schema.CanSandbox] = oneLine(err.Error(), 500)
	}
	if f.workspace == "" {
		self.Missing[schema.CanWorkspace] = "its owner started it without --workspace"
		return self, nil
	}
	if f.workspace, err = filepath.Abs(f.workspace); err != nil {
		return self, fmt.Errorf("--workspace: %w", err)
	}
	if f.unconfined {
		if info, err := os.Stat(f.workspace); err != nil || !info.IsDir() {
			return self, usage("--workspace: %q is not a folder", f.workspace)
		}
		self.Missing[schema.CanConfine] = "its owner started it with --unconfined"
		return self, nil
	}
	sandbox.Workspace = f.workspace
	if err := sandbox.Check(ctx); err != nil {
		return self, fmt.Errorf("--workspace: %w", err)
	}
	return self, nil
}

func machineListCommand() *cobra.Command {
	var nf natsFlags
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the present machines, with their load",
		Long:  "Listen for 3 s and list the machines that announce themselves. The credential is that of the admin.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := nf.dial(cmd.Context(), broker.RoleAdmin, broker.RoleAdmin, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			list, err := machines.List(cmd.Context(), b)
			if err != nil {
				return err
			}
			if !isTable(output) {
				return printList(cmd.OutOrStdout(), output, list)
			}
			t := newList(cmd.OutOrStdout(), output, "MACHINE", "SYSTEM", "VERSION", "SANDBOXES", "SLOTS", "CPUS", "LOAD", "FREE MEMORY", "FREE DISK", "WORKSPACE", "DESKTOP", "STATE")
			t.spare, t.cut = []string{"SYSTEM", "VERSION"}, []string{"DESKTOP", "STATE"}
			for _, m := range list {
				workspace := "yes"
				if _, lacks := m.Missing[schema.CanWorkspace]; lacks {
					workspace = "no"
				} else if _, lacks := m.Missing[schema.CanConfine]; lacks {
					workspace = "unconfined"
				}
				t.row(m.Machine, oneLine(m.System, 30), oneLine(m.Version, 30), m.Lines, m.Slots, m.CPUs, fmt.Sprintf("%.1f", m.Load), gib(m.FreeMemoryBytes), gib(m.FreeDiskBytes), workspace, desktopState(&m), machineState(&m))
			}
			return t.flush()
		},
	}
	nf.add(cmd, defaultURL)
	addListOutput(cmd.Flags(), &output)
	return cmd
}

func gib(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// desktopState tells how far the desktop of a machine can be used, or why it cannot.
func desktopState(m *schema.Machine) string {
	reason, lacks := m.Missing[schema.CanDesktop]
	_, view := m.Missing[schema.CanInput]
	switch {
	case lacks:
		return "no: " + oneLine(cmp.Or(strings.TrimSpace(reason), "unknown"), 200)
	case view:
		return "view"
	default:
		return "input"
	}
}

func machineState(m *schema.Machine) string {
	reason, lacks := m.Missing[schema.CanSandbox]
	switch {
	case m.Draining:
		return "draining"
	case lacks:
		return "no sandboxes: " + oneLine(cmp.Or(strings.TrimSpace(reason), "unknown"), 200)
	default:
		return "ready"
	}
}
