package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/sandboxes/docker"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/upstream"
)

// finding is one line of the doctor's: what was looked at, and what to do if
// it is not well.
type finding struct {
	what string
	ok   string // what was found
	err  error  // nil: all is well
	todo string
}

func doctorCommand() *cobra.Command {
	var nf natsFlags
	var state, cache, image, engine, model string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look whether this host can run rollouts: each line says ok, or what to do",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			var list []finding
			if engine != "" { // nothing else is asked
				var err error
				if list, err = engineFindings(ctx, engine, model); err != nil {
					return err
				}
			} else {
				list = append(list, localFinding(ctx, state))
				list = append(list, dockerFindings(ctx, state, image)...)
				list = append(list, natsFinding(ctx, cmd, &nf))
				list = append(list, agentFindings(cache)...)
				list = append(list, diskFinding(state))
			}
			bad := 0
			for _, f := range list {
				if f.err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "ok       %-16s %s\n", f.what, f.ok)
					continue
				}
				bad++
				fmt.Fprintf(cmd.OutOrStdout(), "problem  %-16s %s\n         %-16s to do: %s\n", f.what, strings.ReplaceAll(f.err.Error(), "\n", " "), "", f.todo)
			}
			if bad > 0 {
				return &exitError{code: exitFault}
			}
			return nil
		},
	}
	nf.add(cmd, "")
	cmd.Flags().StringVar(&state, "state", stateDir(), "folder for the worker's state")
	cmd.Flags().StringVar(&cache, "agents", cacheDir(), "folder of installed agents")
	cmd.Flags().StringVar(&engine, "upstream", "", "look at this engine instead: token ids, log-probs, tool calls, streaming")
	cmd.Flags().StringVar(&model, "model", "", "model to ask the engine for (default: its only one)")
	cmd.Flags().StringVar(&image, "image", "", "an image to look for in Docker")
	return cmd
}

// engineFindings probes an engine before any sandbox is started for it.
func engineFindings(ctx context.Context, url, model string) ([]finding, error) {
	key, err := upstream.KeyFromEnvironment()
	if err != nil {
		return nil, usage("--upstream: %w", err)
	}
	u, err := upstream.New(upstream.Config{URL: url, Key: key, Model: model})
	if err != nil {
		return nil, usage("--upstream: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var out []finding
	for _, f := range u.Probe(ctx) {
		out = append(out, finding{f.What, f.OK, f.Err, f.Todo})
	}
	return out, nil
}

func localFinding(ctx context.Context, state string) finding {
	f := finding{what: "local sandbox", ok: "namespaces work", todo: "allow user namespaces as the line above says, or use --sandbox docker"}
	helper, err := os.Executable()
	if err == nil {
		err = (&local.Backend{Helper: helper, StateDir: state}).Check(ctx)
	}
	f.err = err
	return f
}

func dockerFindings(ctx context.Context, state, image string) []finding {
	f := finding{what: "docker sandbox", ok: "the engine answers", todo: "start Docker, add this user to the docker group, build turngate with `make build`, or use --sandbox local"}
	helper, err := os.Executable()
	if err != nil {
		f.err = err
		return []finding{f}
	}
	b, err := docker.New(helper, state)
	if err == nil {
		err = b.Check(ctx)
	}
	f.err = err
	if image == "" || err != nil {
		return []finding{f}
	}
	return []finding{f, {what: "image", ok: image + " is here", err: b.HasImage(ctx, image), todo: "docker pull " + image + ", or build it"}}
}

func natsFinding(ctx context.Context, cmd *cobra.Command, nf *natsFlags) finding {
	f := finding{what: "NATS", ok: "none asked for; `run` and `up` bring their own", todo: "start it (`turngate up`), and give --nats and --creds"}
	if nf.url == "" {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b, err := nf.dial(ctx, "worker", "doctor", logger(cmd))
	if err != nil {
		f.err = err
		return f
	}
	defer b.Close()
	took, err := b.Check(ctx)
	f.ok, f.err = fmt.Sprintf("JetStream answers within %s, max_payload %d", took.Round(time.Microsecond), b.MaxPayload()), err
	return f
}

func agentFindings(cache string) []finding {
	var out []finding
	for _, s := range agents.All() {
		if len(s.Packages) == 0 {
			continue
		}
		f := finding{what: "agent " + s.Name, ok: s.Version + " is installed", todo: "turngate agent install " + s.Name}
		if !(agents.Cache{Dir: cache}).Installed(s) {
			f.err = agents.ErrNotInstalled
		}
		out = append(out, f)
	}
	return out
}

func diskFinding(state string) finding {
	f := finding{what: "disk", todo: "free some space, or put the state elsewhere with --state"}
	dir := state
	for {
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			break
		}
		dir = dir[:max(strings.LastIndexByte(dir, '/'), 1)]
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		f.err = fmt.Errorf("look at %s: %w", dir, err)
		return f
	}
	free := st.Bavail * uint64(st.Bsize) >> 30
	f.ok = fmt.Sprintf("%d GiB free at %s", free, dir)
	if free < 5 {
		f.err = fmt.Errorf("%d GiB free at %s", free, dir)
	}
	return f
}
