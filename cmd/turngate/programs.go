package main

import (
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/programs"
)

// programCommands returns the commands that run in a sandbox: small programs that
// agents need and an image may lack, and a search for such programs.
func programCommands() []*cobra.Command {
	return []*cobra.Command{
		{
			Use: "ps", Short: "List processes, for agents in images without procps", Hidden: true, DisableFlagParsing: true,
			PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // the options belong to ps, not to turngate
			RunE: func(cmd *cobra.Command, args []string) error {
				if code := programs.PS("/proc", args, plain.Raw(cmd.OutOrStdout()), cmd.ErrOrStderr()); code != 0 {
					return &exitError{code: code}
				}
				return nil
			},
		},
		{
			Use: "look-for PROGRAM...", Short: "Tell which programs a sandbox lacks", Hidden: true,
			RunE: func(cmd *cobra.Command, names []string) error {
				return programs.PrintReport(plain.Raw(cmd.OutOrStdout()), names)
			},
		},
	}
}
