package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/sandboxes"
)

// sweepFirst removes the rest of killed processes before a command looks at sandboxes.
func sweepFirst(cmd *cobra.Command) {
	if err := sweepKept(cmd.Context()); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "sandboxes of a killed process were not removed: %s\n", oneLine(err.Error(), 500))
	}
}

func findSandbox(cmd *cobra.Command, id string) (*reach.Remote, error) {
	sweepFirst(cmd)
	return reach.Find(cmd.Context(), reach.Root(), id)
}

func sandboxListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the sandboxes of this user's commands on this host",
		Long:  "List the sandboxes that commands of this user have on this host: those of rollouts that run inside turngate run or turngate sandbox run, and kept ones. Sandboxes of workers are not listed.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sweepFirst(cmd)
			all, err := reach.List(cmd.Context(), reach.Root())
			if err != nil {
				return err
			}
			if !isTable(output) {
				list := make([]reach.Sandbox, len(all))
				for i, r := range all {
					list[i] = r.Sandbox
					list[i].Env = nil
				}
				return printList(cmd.OutOrStdout(), output, list)
			}
			t := newList(cmd.OutOrStdout(), output, "ID", "TASK", "IMAGE", "BACKEND", "AGE", "STATE")
			t.spare, t.names = []string{"IMAGE"}, []string{"TASK", "IMAGE"}
			for _, r := range all {
				state := r.State
				if r.State == reach.Kept {
					state = "kept until " + r.Until.Format(time.DateTime)
				}
				task := oneLine(r.Task, 60)
				if r.Part != "" {
					task += " (" + r.Part + ")"
				}
				t.row(r.ID, task, oneLine(r.Image, 60), r.Backend, time.Since(r.Made).Round(time.Second), state)
			}
			return t.flush()
		},
	}
	addListOutput(cmd.Flags(), &output)
	return cmd
}

func sandboxExecCommand() *cobra.Command {
	var user, dir string
	cmd := &cobra.Command{
		Use:   "exec ID [-- CMD...]",
		Short: "Run a command in a sandbox of turngate sandbox ls",
		Long: "Run a command in a sandbox, or a shell. It has a terminal if stdin and stdout are terminals. The first letters of an ID are enough.\n\n" +
			"Exit status: that of the command; 1 when the sandbox is gone, 2 when the arguments are invalid.",
		PreRunE: func(cmd *cobra.Command, args []string) error {
			if what, _ := atDash(cmd, args); len(what) != 1 {
				return usage("%d arguments before --: want the ID of a sandbox, and the command after --", len(what))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			what, argv := atDash(cmd, args)
			r, err := findSandbox(cmd, what[0])
			if err != nil {
				return err
			}
			if len(argv) == 0 {
				argv = []string{"/bin/sh", "-c", aShell}
			}
			return execIn(cmd, r.Box(cmd.Context()), sandboxes.Cmd{Args: argv, User: user, Dir: dir, Env: r.Env})
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&user, "user", "u", "", "user of the command (default: the sandbox's)")
	fl.StringVarP(&dir, "workdir", "w", "", "folder of the command (default: the sandbox's)")
	return cmd
}

// starter is a sandbox in which a person runs a command.
type starter interface {
	Start(ctx context.Context, c sandboxes.Cmd) (sandboxes.Process, error)
}

// execIn runs a command of a person in a sandbox.
func execIn(cmd *cobra.Command, in starter, c sandboxes.Cmd) error {
	ctx := cmd.Context()
	out := plain.Raw(cmd.OutOrStdout())
	stdin := cmd.InOrStdin()
	if !isTerminal(os.Stdout) {
		stdin = struct{ io.Reader }{stdin} // no terminal: it would change the output
	}
	s := newSeat(stdin, out, plain.Raw(cmd.ErrOrStderr()))
	defer s.close()
	defer context.AfterFunc(ctx, s.cook)()
	c.Env = maps.Clone(c.Env)
	if s.screen >= 0 {
		c.Env = merged(c.Env, map[string]string{"TERM": os.Getenv("TERM")})
	}
	run, end := s.begin()
	defer end()
	c.Stdin, c.Stdout, c.Stderr, c.Terminal, c.OutputLimit = run.Stdin, run.Stdout, run.Stderr, run.Terminal, math.MaxInt64
	p, err := in.Start(ctx, c)
	if err != nil {
		return err
	}
	exit, err := p.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case exit.Code != 0:
		return &exitError{code: exit.Code}
	default:
		return nil
	}
}

func sandboxPortsCommand() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "ports ID",
		Short: "List the TCP ports on which a sandbox listens, or forward one to this host",
		Args:  cobra.ExactArgs(1),
		PreRunE: func(*cobra.Command, []string) error {
			_, _, err := portsOf(listen)
			return usageOf(flagOf("listen", err))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := findSandbox(cmd, args[0])
			if err != nil {
				return err
			}
			if listen != "" {
				here, there, err := portsOf(listen)
				if err != nil {
					return err
				}
				l, err := listenHere(cmd.Context(), here)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s is port %d of the sandbox, until Ctrl-C\n", l.Addr(), there)
				return forwardPort(cmd.Context(), r.Box(cmd.Context()), l, there, cmd.ErrOrStderr())
			}
			ports, err := r.Box(cmd.Context()).Ports(cmd.Context())
			if err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout(), "PORT", "ADDRESS")
			for _, p := range ports {
				t.row(p.Port(), p.Addr())
			}
			return t.flush()
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "forward a port of the sandbox to 127.0.0.1 until the command is interrupted: PORT, or HERE:PORT for another one here (0: any)")
	return cmd
}

// portsOf reads the value of --listen.
func portsOf(text string) (here, there int, err error) {
	if text == "" {
		return 0, 0, nil
	}
	a, b, two := strings.Cut(text, ":")
	if !two {
		b = a
	}
	h, herr := strconv.ParseUint(a, 10, 16)
	t, terr := strconv.ParseUint(b, 10, 16)
	if herr != nil || terr != nil || t == 0 {
		return 0, 0, fmt.Errorf("%q is not valid: want a port such as 8080, or 9000:8080", text)
	}
	return int(h), int(t), nil
}

// connector is a sandbox with ports that a person reaches.
type connector interface {
	Connect(ctx context.Context, port int, conn net.Conn) error
}

// listenHere listens on a port of this host's loopback address.
func listenHere(ctx context.Context, port int) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return l, nil
}

// forwardPort carries connections of a listener, which it closes, to a port of the
// sandbox, until the context ends. A connection that fails is a line of failures.
func forwardPort(ctx context.Context, to connector, l net.Listener, there int, failures io.Writer) error {
	defer func() { _ = l.Close() }()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		go func() {
			if err := to.Connect(ctx, there, conn); err != nil && ctx.Err() == nil {
				fmt.Fprintf(failures, "port %d: %s\n", there, oneLine(err.Error(), 300))
			}
		}()
	}
}

func sandboxRemoveCommand() *cobra.Command {
	var all bool
	var older time.Duration
	cmd := &cobra.Command{
		Use:   "rm [ID...]",
		Short: "Remove sandboxes that are kept",
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{atLeast("older", older, 0)}
			if (len(args) > 0) == (all || older > 0) || all && older > 0 {
				wrong = append(wrong, errors.New("want the IDs of sandboxes, or --all, or --older"))
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			sweepFirst(cmd)
			ctx := cmd.Context()
			var list []*reach.Remote
			var failed []error
			for _, id := range args {
				r, err := reach.Find(ctx, reach.Root(), id)
				if err != nil {
					failed = append(failed, err)
					continue
				}
				list = append(list, r)
			}
			if len(args) == 0 {
				found, err := reach.List(ctx, reach.Root())
				if err != nil {
					return err
				}
				for _, r := range found {
					if r.State == reach.Kept && time.Since(r.Made) >= older {
						list = append(list, &r)
					}
				}
			}
			for _, r := range list {
				if err := r.Remove(ctx); err != nil {
					failed = append(failed, err)
					continue
				}
				fmt.Fprintln(cmd.OutOrStdout(), r.ID)
			}
			return errors.Join(failed...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove all that are kept")
	cmd.Flags().DurationVar(&older, "older", 0, "remove those that were made longer ago than this, such as 1h")
	return cmd
}
