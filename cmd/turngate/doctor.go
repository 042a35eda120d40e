package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/sandboxes"
)

// finding is one line of the doctor's output.
type finding struct {
	what string // the subject of the check
	ok   string // the good result
	err  error  // what is missing; nil: nothing
	todo string // advice if something is missing
	more bool   // rollouts run without it, so that an error is no problem
}

// line writes a finding, and reports whether it is a problem.
func (f *finding) line(w io.Writer) (problem bool) {
	if f.err == nil {
		fmt.Fprintf(w, "ok       %-16s %s\n", f.what, f.ok)
		return false
	}
	head := "problem"
	if f.more {
		head = "not here"
	}
	fmt.Fprintf(w, "%-8s %-16s %s\n         %-16s to do: %s\n", head, f.what, strings.ReplaceAll(f.err.Error(), "\n", " "), "", f.todo)
	return !f.more
}

func doctorCommand() *cobra.Command {
	var nf natsFlags
	var hosts sshFlags
	var hosted e2bFlags
	var machines primeFlags
	var cluster kubernetesFlags
	var virtual modalFlags
	var state, cache, image, upstreamURL, model, as string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look whether this host can run rollouts: each line says ok, or what to do",
		Long: "Look whether this host can run rollouts: each line says ok, or what to do.\n\n" +
			"A problem stops rollouts with the default settings, or with what the flags name. What is \"not here\" stops only those that ask for it.\n\n" +
			"Exit status: 0 without a problem, 1 with one, 2 when the arguments are invalid.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			role, name, err := roleOf(as, nf.creds)
			if err != nil {
				return usageOf(flagOf("role", err))
			}
			if err := usageOf(hosts.check(), hosted.check(), machines.check(), cluster.check(), virtual.check()); err != nil {
				return err
			}
			var list []finding
			if upstreamURL != "" { // skips the other checks
				if list, err = upstreamFindings(ctx, upstreamURL, model); err != nil {
					return err
				}
			} else {
				account, err := hosted.settings()
				if err != nil {
					return err
				}
				team, err := machines.settings()
				if err != nil {
					return err
				}
				pods, err := cluster.settings()
				if err != nil {
					return err
				}
				list = append(list, sandboxFindings(ctx, sandboxes.Host{StateDir: state, SSH: hosts.settings(), E2B: account, Prime: team, Kubernetes: pods, Modal: virtual.settings()}, image)...)
				list = append(list, natsFindings(ctx, cmd, &nf, role, name)...)
				list = append(list, agentsFinding(cache))
				list = append(list, diskFinding(state))
			}
			bad := 0
			for _, f := range list {
				if f.line(cmd.OutOrStdout()) {
					bad++
				}
			}
			if bad > 0 {
				return &exitError{code: exitFault}
			}
			return nil
		},
	}
	nf.add(cmd, "")
	hosts.add(cmd.Flags(), "")
	hosted.add(cmd.Flags(), "")
	machines.add(cmd.Flags(), "")
	cluster.add(cmd.Flags(), "")
	virtual.add(cmd.Flags(), "")
	cmd.Flags().StringVar(&as, "role", "", "role of the credential: trainer:NAME, worker:NAME, ops or admin (default: as its file is named)")
	cmd.Flags().StringVar(&state, "state", stateDir(), "folder for the worker's state")
	cmd.Flags().StringVar(&cache, "agents", cacheDir(), "folder of installed agents")
	cmd.Flags().StringVar(&upstreamURL, "upstream", "", "look at this upstream instead: token ids, log-probs, tool calls, streaming")
	cmd.Flags().StringVar(&model, "model", "", "model to ask the upstream for (default: its only one)")
	cmd.Flags().StringVar(&image, "image", "", "an image to look for, in "+orList(backends.WithImages()))
	return cmd
}

// upstreamFindings checks an upstream without a sandbox.
func upstreamFindings(ctx context.Context, url, model string) ([]finding, error) {
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
		out = append(out, finding{what: f.What, ok: f.OK, err: f.Err, todo: f.Todo})
	}
	return out, nil
}

// sandboxFindings checks every backend. A problem is one that the settings name or that is the
// default, and Docker for an image. An image is looked for in the backends that work and have
// images.
func sandboxFindings(ctx context.Context, host sandboxes.Host, image string) []finding {
	var err error
	if host.Helper, err = helper(); err != nil {
		return []finding{{what: "sandboxes", err: err, todo: "install turngate with install.sh of its release, which brings that program"}}
	}
	var out []finding
	var others []string
	for i, k := range backends.All() {
		b, err := k.New(host)
		if err == nil {
			err = b.Check(ctx)
		}
		if errors.Is(err, sandboxes.ErrNotAsked) {
			others = append(others, k.Name)
			continue
		}
		asked := k.Asked != nil && k.Asked(host) || k.Images && image != ""
		out = append(out, finding{what: k.Name + " sandbox", ok: k.Works, err: err, todo: k.Remedy, more: i > 0 && !asked})
		if e, ok := b.(sandboxes.Engine); ok && err == nil {
			out = append(out, engineFinding(ctx, k.Name, e))
		}
		if store, ok := b.(sandboxes.ImageStore); ok && k.Images && image != "" && err == nil {
			out = append(out, finding{what: k.Name + " image", ok: image + " is here", err: store.HasImage(ctx, image), todo: "pull " + image + " with " + k.Name + ", or build it"})
		}
	}
	if len(others) > 0 {
		out = append(out, finding{what: "other sandboxes", ok: "not asked for: " + strings.Join(others, ", ") + "; `turngate doctor --help` has their flags"})
	}
	return out
}

// engineFinding describes the engine of a backend. A feature that it lacks is no problem:
// rollouts run without it.
func engineFinding(ctx context.Context, name string, e sandboxes.Engine) finding {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	f := finding{what: name + " engine", todo: "look whether it works: docker info"}
	var lacks []string
	f.ok, lacks, f.err = e.Describe(ctx)
	for _, l := range lacks {
		f.ok += fmt.Sprintf("\n         %-16s it lacks: %s", "", oneLine(l, 300))
	}
	return f
}

func natsFindings(ctx context.Context, cmd *cobra.Command, nf *natsFlags, role, name string) []finding {
	f := finding{what: "NATS", ok: "none asked for; `run` and `up` bring their own", todo: "start it (`turngate up`), and give --nats, --creds, and --role if the credential's file was renamed"}
	if nf.url == "" {
		return []finding{f}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b, err := nf.dial(ctx, role, name, logger(cmd))
	if err != nil {
		f.err = err
		return []finding{f}
	}
	defer b.Close()
	if role == broker.RoleMachine { // it has no rights in JetStream
		f.ok = fmt.Sprintf("the server answers, max_payload %d", b.MaxPayload())
		return []finding{f, accountsFinding(ctx, b, role, name)}
	}
	took, err := b.Check(ctx)
	f.ok, f.err = fmt.Sprintf("JetStream answers within %s, max_payload %d", took.Round(time.Microsecond), b.MaxPayload()), err
	if err != nil {
		return []finding{f}
	}
	return []finding{f, accountsFinding(ctx, b, role, name), recordsFinding(ctx, b, role, name)}
}

// recordsFinding looks for trainers with more records than their bound. A trainer
// sees only its own.
func recordsFinding(ctx context.Context, b *broker.Broker, role, name string) finding {
	f := finding{what: "records", todo: "wait until finished rollouts are removed (--retention of the workers), or raise the bound: turngate trainer add NAME --max-record-mb N"}
	all := []string{name}
	if role != broker.RoleTrainer {
		if all, f.err = b.Trainers.List(ctx); f.err != nil {
			return f
		}
	}
	n := 0
	for _, tid := range all {
		bytes, most, err := b.Trainers.Records(ctx, tid)
		if errors.Is(err, broker.ErrNotFound) {
			continue
		}
		n++
		if err == nil {
			err = recordsOf(tid, bytes, most)
		}
		f.err = errors.Join(f.err, err)
	}
	f.ok = fmt.Sprintf("%s below the bound of the records", plural(n, "trainer"))
	return f
}

// recordsOf returns an error if a trainer has more bytes of records than its bound;
// 0: none.
func recordsOf(tid string, bytes, most int64) error {
	if most == 0 || bytes <= most {
		return nil
	}
	return fmt.Errorf("the trainer %s has %d MB of records, more than its bound of %d MB: workers take none of its requests", tid, bytes>>20, most>>20)
}

// roleOf reads --role. By default the name of the credential's file has the role.
func roleOf(text, creds string) (role, name string, err error) {
	if text == "" {
		if role, name = broker.RoleOf(creds); role == "" {
			role, name = broker.RoleWorker, "doctor"
		}
		return role, name, nil
	}
	role, name, found := strings.Cut(text, ":")
	if !found {
		name = role
	}
	return role, name, broker.CheckRole(role, name)
}

// accountsFinding checks that the server limits this client to its role. If not,
// the error lists the operations that are open to the client.
func accountsFinding(ctx context.Context, b *broker.Broker, role, name string) finding {
	f := finding{what: "accounts", todo: "use `turngate up`, `turngate nats`, or the file of `turngate nats config`, unless all its clients trust each other"}
	protection, account, err := b.Protection(ctx, role, name)
	f.ok = fmt.Sprintf("this client is %s %s in the account %s, and may use only the subjects of its role", role, name, account)
	if role == broker.RoleAdmin {
		f.ok = "this client is an admin in the account " + account
	}
	const everything = "read all requests, calls, results and bundles, forge states and results, cancel rollouts of others, and delete the streams"
	switch {
	case err != nil:
		f.err = err
	case protection == broker.ProtectionNone:
		f.err = errors.New("the server has no accounts: every client can " + everything)
	case protection == broker.ProtectionOther:
		f.err = fmt.Errorf("this client is in the account %q without the limits of %s %s: nothing shows that other clients cannot %s", account, role, name, everything)
	}
	return f
}

// agentsFinding lists the agents that can run, and the ones that can be installed.
func agentsFinding(cache string) finding {
	var here, more []string
	for _, s := range agents.All() {
		if (agents.Cache{Dir: cache}).Installed(s) {
			here = append(here, strings.TrimSpace(s.Name+" "+s.Version))
		} else {
			more = append(more, s.Name)
		}
	}
	f := finding{what: "agents", ok: strings.Join(here, ", ")}
	switch {
	case len(more) == 1:
		f.ok += "; one more can be installed: turngate agent install " + more[0]
	case len(more) > 1:
		f.ok += fmt.Sprintf("; %d more can be installed: turngate agent install %s", len(more), strings.Join(more, "|"))
	}
	return f
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
	bytes, _, err := kernel.Disk(dir)
	if err != nil {
		f.err = fmt.Errorf("look at the disk: %w", err)
		return f
	}
	free := bytes >> 30
	f.ok = fmt.Sprintf("%d GiB free at %s", free, dir)
	if free < 5 {
		f.err = fmt.Errorf("%d GiB free at %s", free, dir)
	}
	return f
}
