package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/machine"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/far"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/schema"
)

// machineFlags name the machines of the backend machine.
type machineFlags struct{ machines string }

func (f *machineFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.machines, "machines", "", "machines of the machine sandbox, comma-separated (default: all that are there)")
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
	fleet, err := machines.NewFleet(b, wid, machines.DefaultTiming())
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
	cmd.AddCommand(machineServeCommand(), machineListCommand(), accessCommand(machineAccess, true), accessCommand(machineAccess, false))
	return cmd
}

type machineServeFlags struct {
	nats  natsFlags
	name  string
	state string
	slots int
	grace time.Duration
}

func machineServeCommand() *cobra.Command {
	f := &machineServeFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Take sandboxes from workers over NATS until SIGTERM",
		Long: "Connect to NATS and make local sandboxes on this host for workers with --sandboxes machine. This host needs no inbound port.\n\n" +
			"After SIGTERM it takes no more sandboxes, and gives those that run the time of --grace.",
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			return usageOf(atLeast("grace", f.grace, 0), flagOf("name", f.check()))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve(cmd) },
	}
	f.nats.add(cmd, defaultURL)
	fl := cmd.Flags()
	fl.StringVar(&f.name, "name", "", "name of the machine (default: that of a credential machine-NAME.nk)")
	fl.StringVar(&f.state, "state", filepath.Join(stateDir(), "machine"), "folder for the machine's files")
	fl.Var(newCount(&f.slots, runtime.NumCPU()), "slots", "sandboxes at once (default: one for each CPU)")
	fl.DurationVar(&f.grace, "grace", 30*time.Second, "how long running sandboxes may go on after SIGTERM")
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
	log := newLogger(cmd, zerolog.InfoLevel)
	b, err := f.nats.dial(ctx, broker.RoleMachine, name, log)
	if err != nil {
		return err
	}
	defer b.Close()
	m := &machines.Machine{
		Broker: b, Timing: machines.DefaultTiming(), Self: self, Measure: state.Measure, Grace: f.grace,
		Start: func(_ string, stream *os.File) (machines.Process, error) {
			p, err := far.Start(helper, []string{f.state}, stream)
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
		log.Warn().Str("capability", capability).Str("reason", reason).Msg("the machine lacks a capability")
	}
	log.Info().Str("machine", name).Str("instance", self.Instance).Int("slots", self.Slots).Msg("the machine is ready")
	return m.Serve(ctx)
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
		Machine: name, Instance: machines.InstanceOf(epoch, randomHex(4)), Epoch: epoch, Version: version, Program: digest,
		System: runtime.GOOS + "/" + runtime.GOARCH, Slots: f.slots, Missing: map[string]string{},
	}
	if err := (&local.Backend{Helper: helper, StateDir: filepath.Join(f.state, "state")}).Check(ctx); err != nil {
		self.Missing[schema.CanSandbox] = oneLine(err.Error(), 500)
	}
	return self, nil
}

func machineListCommand() *cobra.Command {
	var nf natsFlags
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the machines that are there, with their load",
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
			t := newList(cmd.OutOrStdout(), output, "MACHINE", "SYSTEM", "VERSION", "SANDBOXES", "SLOTS", "CPUS", "LOAD", "FREE MEMORY", "FREE DISK", "STATE")
			t.spare, t.cut = []string{"SYSTEM", "VERSION"}, []string{"STATE"}
			for _, m := range list {
				t.row(m.Machine, oneLine(m.System, 30), oneLine(m.Version, 30), m.Lines, m.Slots, m.CPUs, fmt.Sprintf("%.1f", m.Load), gib(m.FreeMemoryBytes), gib(m.FreeDiskBytes), machineState(&m))
			}
			return t.flush()
		},
	}
	nf.add(cmd, defaultURL)
	addListOutput(cmd.Flags(), &output)
	return cmd
}

func gib(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

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
