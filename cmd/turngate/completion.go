package main

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/contexts"
	"github.com/turngate/turngate/jobs/recorded"
)

// maxCompleted bounds the rollouts that a shell is offered.
const maxCompleted = 200

// addCompletions gives shells the values of flags and arguments: of flags with fixed
// values, agents, contexts, and the rollouts of the jobs on this machine.
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
	case parent == "rollout" && cmd.Name() != "ls" && cmd.Name() != "cp":
		cmd.ValidArgsFunction = completeRollouts
	}
}

// completeRollouts offers the ids of rollouts, and files.
func completeRollouts(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	runs, err := cmd.Flags().GetString("runs")
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	list, _ := recorded.InJobs(runs) // those that can be read
	var out []string
	for _, r := range list[:min(len(list), maxCompleted)] {
		out = append(out, string(r.ID))
	}
	return out, cobra.ShellCompDirectiveDefault
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
