package main

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/contexts"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// maxCompleted bounds the values that a shell is offered, and the rollouts of a trainer
// that are read for them.
const maxCompleted = 200

// addCompletions gives shells the values of flags and arguments: of flags with fixed
// values, agents, contexts, and the names of a running system or of the jobs on this
// machine.
func addCompletions(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		addCompletions(c)
	}
	values := func(list func() []string) cobra.CompletionFunc {
		return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			left := slices.DeleteFunc(list(), func(v string) bool { return v == "" || slices.Contains(args, v) })
			return left, cobra.ShellCompDirectiveNoFileComp
		}
	}
	complete := func(f *pflag.Flag) {
		var list func() []string
		switch v := f.Value.(type) {
		case *choice:
			list = func() []string { return slices.Clone(v.want) }
		case *contextFlag:
			list = contextNames
		default:
			if f.Name != "agent" {
				return
			}
			list = agentNames
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, values(list)) // it fails for a flag that is not there
	}
	cmd.LocalNonPersistentFlags().VisitAll(complete)
	cmd.PersistentFlags().VisitAll(complete)
	if cmd.ValidArgsFunction != nil || !cmd.HasParent() {
		return
	}
	switch parent := cmd.Parent().Name(); {
	case parent == "context" && slices.Contains([]string{"use", "show", "rm"}, cmd.Name()):
		cmd.ValidArgsFunction = values(contextNames)
	case parent == "agent" && cmd.Name() == "install":
		cmd.ValidArgsFunction = values(agentNames)
	case parent == "rollout" && cmd.Name() != "ls" && cmd.Name() != "cp", cmd.Name() == "tap":
		cmd.ValidArgsFunction = completeFrom(rolloutsOf, rolloutsIn)
	case parent == "group" && cmd.Name() == "get":
		cmd.ValidArgsFunction = completeFrom(groupsOf, groupsIn)
	case parent == "trainer" && cmd.Name() == "rm":
		cmd.ValidArgsFunction = completeFrom(trainersOf, nil)
	case parent == "worker" && cmd.Name() == "rm":
		cmd.ValidArgsFunction = completeFrom(workersOf, nil)
	case parent == "job" && cmd.Name() != "ls":
		cmd.ValidArgsFunction = completeFrom(nil, jobsIn)
	}
}

// completeWithin bounds the time in which a running system, or a folder, must answer a
// completion.
const completeWithin = 1500 * time.Millisecond

// completeFrom offers names of the running system that the flags or the current context
// name; without one, names in the folder of jobs, and files.
func completeFrom(system func(context.Context, *broker.Broker, string) []string, folder func(string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var all []string
		files := cobra.ShellCompDirectiveDefault
		if nats := completedSystem(cmd, args); nats != nil && system != nil {
			ctx, cancel := context.WithTimeout(cmd.Context(), completeWithin)
			defer cancel()
			role, name := broker.RoleOf(nats.creds)
			if role != broker.RoleTrainer && role != broker.RoleAdmin {
				role, name = broker.RoleOps, broker.RoleOps
			}
			b, err := nats.dial(ctx, role, name, zerolog.Nop())
			if err != nil { // a shell has no place for errors
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			defer b.Close()
			if role != broker.RoleTrainer {
				name = ""
			}
			all, files = system(ctx, b, name), cobra.ShellCompDirectiveNoFileComp
		} else if folder != nil {
			runs := "runs"
			if f := cmd.Flags().Lookup("runs"); f != nil {
				runs = f.Value.String()
			}
			read := make(chan []string, 1)
			go func() { read <- folder(runs) }() // of many jobs; it ends with the process at the latest
			select {
			case all = <-read:
			case <-time.After(completeWithin):
			}
		}
		all = slices.DeleteFunc(all, func(v string) bool { return slices.Contains(args, v) || !completable(v) })
		return all[:min(len(all), maxCompleted)], files
	}
}

// maxCompletion is the length of a value above which it is not offered, in bytes.
const maxCompletion = 200

// completable reports whether a shell may be offered a value. Trainers choose names, and
// bash inserts the beginning that several values share without quotes.
func completable(v string) bool {
	return v != "" && len(v) <= maxCompletion && v[0] != '-' && !strings.ContainsFunc(v, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-./:,@+%", r)
	})
}

// completedSystem returns the flags of a command that names a running system; nil: it
// names none.
func completedSystem(cmd *cobra.Command, args []string) *natsFlags {
	flag := cmd.Flags().Lookup("context")
	if flag == nil {
		return nil
	}
	own, ok := flag.Value.(*contextFlag)
	if !ok || fromEnvironment(cmd.Flags()) != nil || resolveContext(cmd, args) != nil || own.of.url == "" {
		return nil
	}
	return own.of
}

// readTrainers lists the trainers that the client of this name may read; empty: an operator or
// the admin.
func readTrainers(ctx context.Context, b *broker.Broker, name string) []string {
	if name != "" {
		return []string{name}
	}
	return trainersOf(ctx, b, name)
}

func trainersOf(ctx context.Context, b *broker.Broker, _ string) []string {
	all, _ := b.Trainers.List(ctx) // without an answer none is offered
	return all
}

func rolloutsOf(ctx context.Context, b *broker.Broker, name string) (out []string) {
	for _, tid := range readTrainers(ctx, b, name) {
		if name != "" {
			_, _ = b.Records.Waiting(ctx, tid, 0, maxCompleted, func(q *schema.Request) bool { // the readable ones
				out = append(out, string(q.ID))
				return true
			})
		}
		states, _ := b.Records.States(ctx, tid, 0, maxCompleted)
		for _, s := range states {
			if !slices.Contains(out, string(s.Value.ID)) {
				out = append(out, string(s.Value.ID))
			}
		}
	}
	return out
}

func rolloutsIn(runs string) (out []string) {
	list, _ := recorded.InJobs(runs) // the readable ones
	for _, r := range list {
		out = append(out, string(r.ID))
	}
	return out
}

func groupsOf(ctx context.Context, b *broker.Broker, name string) (out []string) {
	for _, tid := range readTrainers(ctx, b, name) {
		list, _, _ := recorded.On(b).Rollouts(ctx, tid, 0, maxCompleted, name != "")
		out = append(out, namesOfGroups(list)...)
	}
	return out
}

func groupsIn(runs string) []string {
	list, _ := recorded.InJobs(runs)
	return namesOfGroups(list)
}

func namesOfGroups(list []*recorded.Rollout) (out []string) {
	for _, g := range recorded.Groups(list) {
		out = append(out, g.Name)
	}
	return out
}

func workersOf(ctx context.Context, b *broker.Broker, _ string) (out []string) {
	all, _ := b.Records.Workers(ctx)
	for _, w := range all {
		out = append(out, w.Worker)
	}
	slices.Sort(out)
	return slices.Compact(out) // a worker may have several processes
}

func jobsIn(runs string) (out []string) {
	list, _ := jobs.List(runs)
	for _, e := range list {
		out = append(out, e.Dir)
	}
	return out
}

func contextNames() []string {
	store, err := contexts.Open()
	if err != nil {
		return nil
	}
	return store.Names()
}

func agentNames() []string {
	var out []string
	for _, s := range agents.All() {
		out = append(out, s.Name)
	}
	return out
}
