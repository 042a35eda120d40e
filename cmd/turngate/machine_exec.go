package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/backends/machine"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// machineHelp is a part of the help of each command in a machine's workspace.
const machineHelp = "The owner of the machine names a folder with `turngate machine serve --workspace`. The command has a sandbox of its own there, with the folder as " + sandboxes.DefaultWorkdir +
	" and no network; nothing else stays. The credential is that of the admin. Up to a minute without a connection costs nothing."

// withFleet calls do with the live machines, for the admin.
func withFleet(cmd *cobra.Command, nf *natsFlags, do func(*machines.Fleet) error) error {
	b, err := nf.dial(cmd.Context(), broker.RoleAdmin, broker.RoleAdmin, logger(cmd))
	if err != nil {
		return err
	}
	defer b.Close()
	fleet, err := machines.NewFleet(b, subjects.AdminClient, line.DefaultTiming())
	if err != nil {
		return err
	}
	defer fleet.Close()
	return do(fleet)
}

// inMachine calls do with a sandbox in the workspace of a machine, until do returns.
func inMachine(cmd *cobra.Command, nf *natsFlags, name string, do func(*machine.Sandbox) error) error {
	return withFleet(cmd, nf, func(fleet *machines.Fleet) error { return inWorkspace(cmd.Context(), fleet, name, do) })
}

func inWorkspace(ctx context.Context, fleet *machines.Fleet, name string, do func(*machine.Sandbox) error) error {
	host := sandboxes.Host{Machines: sandboxes.Machines{Fleet: fleet, Names: []string{name}}}
	sb, err := machine.Workspace(ctx, host, sandboxes.Spec{Owner: "admin", Rollout: schema.ID("exec-" + randomHex(8)), Attempt: 1, Life: 30 * 24 * time.Hour, Ready: time.Minute})
	if err != nil {
		return err
	}
	end := func() { _ = sb.Close(context.WithoutCancel(ctx)) } // is always nil
	defer end()
	defer context.AfterFunc(ctx, end)() // a command is waited for without the context
	return do(sb)
}

func machineExecCommand() *cobra.Command {
	var nf natsFlags
	var listen string
	cmd := &cobra.Command{
		Use:   "exec NAME -- CMD...",
		Short: "Run a command in the workspace of a machine",
		Long: "Run a command in the workspace of a machine. It has a terminal if stdin and stdout are terminals, and no time limit.\n\n" + machineHelp + "\n\n" +
			"Exit status: that of the command; 1 when the machine cannot be reached, 2 when the arguments are invalid.",
		PreRunE: func(cmd *cobra.Command, args []string) error {
			what, argv := atDash(cmd, args)
			if len(what) != 1 || len(argv) == 0 {
				return usage("%d arguments before -- and %d after it: want the name of a machine, and after -- the command", len(what), len(argv))
			}
			_, _, err := portsOf(listen)
			return usageOf(machineAccess().check(what[0]), flagOf("listen", err))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			what, argv := atDash(cmd, args)
			return inMachine(cmd, &nf, what[0], func(sb *machine.Sandbox) error {
				if listen == "" {
					return execIn(cmd, sb, sandboxes.Cmd{Args: argv})
				}
				return listenAndExec(cmd, sb, listen, argv)
			})
		},
	}
	nf.add(cmd, defaultURL)
	cmd.Flags().StringVar(&listen, "listen", "", "forward a port of the command to 127.0.0.1 until it ends: PORT, or HERE:PORT for another one here (0: any)")
	return cmd
}

// listenAndExec runs a command and makes one of its ports a port of this host until it ends.
func listenAndExec(cmd *cobra.Command, sb *machine.Sandbox, listen string, argv []string) error {
	here, there, err := portsOf(listen)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	l, err := listenHere(ctx, here)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s is port %d of the sandbox, until the command ends\n", l.Addr(), there)
	forwarded := make(chan error, 1)
	go func() {
		err := forwardPort(ctx, sb, l, there, besideScreen(cmd))
		if ctx.Err() != nil {
			err = nil
		} else {
			_ = sb.Close(context.WithoutCancel(ctx)) // is always nil; the command ends with it
		}
		forwarded <- err
	}()
	err = execIn(cmd, sb, sandboxes.Cmd{Args: argv})
	stop()
	return cmp.Or(<-forwarded, err)
}

// besideScreen returns stderr for lines beside a command of execIn, which makes the terminal raw.
func besideScreen(cmd *cobra.Command) io.Writer {
	if isTerminal(os.Stdin) && isTerminal(os.Stdout) && isTerminal(os.Stderr) {
		return rawLines{plain.Raw(cmd.ErrOrStderr())}
	}
	return cmd.ErrOrStderr()
}

// rawLines writes plain lines to a raw terminal, each write from the first column on.
type rawLines struct{ to io.Writer }

func (w rawLines) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, "\r\n"+strings.ReplaceAll(plain.Text(string(p)), "\n", "\r\n")); err != nil {
		return 0, err
	}
	return len(p), nil
}

func machineShellCommand() *cobra.Command {
	var nf natsFlags
	cmd := &cobra.Command{
		Use:   "shell NAME",
		Short: "Run a shell in the workspace of a machine",
		Long:  "Run a shell in the workspace of a machine, at this terminal.\n\n" + machineHelp,
		Args:  cobra.ExactArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			return usageOf(machineAccess().check(args[0]))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return inMachine(cmd, &nf, args[0], func(sb *machine.Sandbox) error {
				return execIn(cmd, sb, sandboxes.Cmd{Args: []string{"/bin/sh", "-c", aShell}})
			})
		},
	}
	nf.add(cmd, defaultURL)
	return cmd
}

func machineCopyCommand() *cobra.Command {
	var nf natsFlags
	var f copyFlags
	cmd := &cobra.Command{
		Use:   "cp NAME:PATH LOCAL | cp LOCAL NAME:PATH",
		Short: "Copy a file or a folder out of the workspace of a machine, or into it",
		Long: "Copy a file or a folder out of the workspace of a machine, or into it. PATH is relative to the workspace, or below " + sandboxes.DefaultWorkdir + ". A target that is a folder gets the copy below it. " +
			"Only files and folders are copied: no links, and no owners.\n\n" + machineHelp,
		Args: cobra.ExactArgs(2),
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{atLeast("max-mb", f.maxMB, 1)}
			if len(args) == 2 {
				_, _, _, err := machineSides(args[0], args[1])
				wrong = append(wrong, err)
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			name, at, out, err := machineSides(args[0], args[1])
			if err != nil {
				return err
			}
			return inMachine(cmd, &nf, name, func(sb *machine.Sandbox) error {
				if out {
					return f.out(cmd.Context(), sb.Files(), at, args[1])
				}
				return f.in(cmd, sb.Files(), args[0], at)
			})
		},
	}
	nf.add(cmd, defaultURL)
	f.addMost(cmd.Flags())
	return cmd
}

// machineSides is copySides with a path in the workspace of a machine.
func machineSides(from, to string) (name, at string, out bool, err error) {
	name, at, out, err = copySides(from, to, "NAME:PATH")
	if err != nil {
		return "", "", false, err
	}
	if err := machineAccess().check(name); err != nil {
		return "", "", false, err
	}
	full := path.Clean(at)
	if !path.IsAbs(at) {
		full = path.Join(sandboxes.DefaultWorkdir, at)
	}
	if full != sandboxes.DefaultWorkdir && !strings.HasPrefix(full, sandboxes.DefaultWorkdir+"/") {
		return "", "", false, fmt.Errorf("%q is not valid: want a path in the workspace after the name, such as src/a.txt or %s/src/a.txt", name+":"+at, sandboxes.DefaultWorkdir)
	}
	return name, full, out, nil
}
