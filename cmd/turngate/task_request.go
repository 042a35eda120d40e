package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// taskDetails is everything that a trainer needs of a task directory.
type taskDetails struct {
	Request  *schema.Request   `json:"request"`
	Solution map[string]string `json:"solution,omitempty"`
	Warnings []string          `json:"warnings,omitempty"`
	Missing  []tasks.Missing   `json:"missing,omitempty"`
}

func taskRequestCommand() *cobra.Command {
	var bundle, agent, verifier string
	var details bool
	var given taskEnv
	cmd := &cobra.Command{
		Use:   "request DIR",
		Short: "Print a task directory as the JSON of a request, for trainers in any language",
		Long: "Print a task directory as the JSON of a request. The trainer adds id, trainer, agent.name, sandbox.backend and, if it wants, other fields.\n\n" +
			"--bundle writes the task's files, which the trainer stores in its object store; task.bundle is their sha256. " +
			"Values of ${VAR} come from --task-env and --task-env-file. The variables of solution.env are in agent.env with --agent oracle alone.\n\n" +
			"--details prints an object: the request, the variables of solution.env as solution, warnings about keys without effect, " +
			"and as missing the variables that the task asks for and was not given. Task.load of the Python client reads it.",
		Args: needArgs(1, 1, "one task directory"),
		PreRunE: func(*cobra.Command, []string) error {
			wrong := []error{given.check()}
			if agent != "" {
				_, err := agents.Find(agents.All(), agent)
				wrong = append(wrong, err)
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := given.load(cmd, args[0], verifier)
			if err != nil {
				return usage("%w", err)
			}
			for _, w := range t.Warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), oneLine(w, 400))
			}
			printMissing(cmd.ErrOrStderr(), t)
			q := t.Request
			sum := sha256.Sum256(t.Bundle)
			q.V, q.Task.Bundle, q.Agent.Name = schema.Version, hex.EncodeToString(sum[:]), agent
			if spec, err := agents.Find(agents.All(), agent); err == nil && spec.Solution {
				q.Agent.Env = t.Solution
			}
			if bundle != "" {
				if err := os.WriteFile(bundle, t.Bundle, 0o644); err != nil {
					return fmt.Errorf("write the bundle: %w", err)
				}
			}
			if details {
				return printJSON(cmd.OutOrStdout(), taskDetails{&q, t.Solution, t.Warnings, t.Missing})
			}
			return printJSON(cmd.OutOrStdout(), &q)
		},
	}
	given.add(cmd.Flags())
	cmd.Flags().StringVar(&bundle, "bundle", "", "file to write the task's files to, as tar.zst")
	cmd.Flags().BoolVar(&details, "details", false, "print an object with request, solution, warnings and missing")
	cmd.Flags().StringVar(&agent, "agent", "", "agent of the request")
	cmd.Flags().Var(newChoice(&verifier, "", "separate"), "verifier", "separate: verify in a second sandbox (default: the task's mode)")
	return cmd
}
