package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"fmt"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/mini"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/toolserver"
)

func agentCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "agent", Short: "List and install agents"}
	var dir string
	cmd.PersistentFlags().StringVar(&dir, "agents", cacheDir(), "folder of installed agents")
	var try agentCheck
	var all bool
	var output string
	list := &cobra.Command{
		Use: "ls", Short: "List the agents; --check runs the installed ones", Args: cobra.NoArgs, PreRunE: func(cmd *cobra.Command, args []string) error {
			if try.check && output != formatTable {
				return usageOf(try.checkFlags(cmd, args), errors.New("--output: --check has a table only"))
			}
			return try.checkFlags(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if try.check {
				return try.checkAll(cmd, dir)
			}
			var list []agentEntry
			for _, s := range agents.All() {
				builtIn := len(s.Packages) == 0
				list = append(list, agentEntry{s.Name, s.Version, s.Dialect, builtIn, builtIn || (agents.Cache{Dir: dir}).Installed(s)})
			}
			if !isTable(output) {
				return printList(cmd.OutOrStdout(), output, list)
			}
			w := newList(cmd.OutOrStdout(), output, "AGENT", "VERSION", "SPEAKS", "INSTALLED")
			for _, a := range list {
				installed := map[bool]string{true: "yes", false: "no"}[a.Installed]
				if a.BuiltIn {
					installed = "built in"
				}
				w.row(a.Agent, dash(a.Version), dash(a.Dialect), installed)
			}
			return w.flush()
		},
	}
	install := &cobra.Command{
		Use: "install AGENT... | install --all", Short: "Fetch agents from npm into this host's cache",
		PreRunE: func(_ *cobra.Command, names []string) error {
			if all != (len(names) == 0) {
				return usage("agent install: want names of agents, or --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			for _, s := range agents.All() {
				if all && len(s.Packages) > 0 {
					names = append(names, s.Name)
				}
			}
			for _, name := range names {
				s, err := agents.Find(agents.All(), name)
				if err != nil {
					return &exitError{exitUsage, err}
				}
				if err := (agents.Cache{Dir: dir}).Install(cmd.Context(), s, cmd.ErrOrStderr()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	install.Flags().BoolVar(&all, "all", false, "every agent that has packages")
	try.add(list)
	addListOutput(list.Flags(), &output)
	cmd.AddCommand(list, install)
	return cmd
}

// agentEntry is an agent in the list of agents.
type agentEntry struct {
	Agent     string `json:"agent"`
	Version   string `json:"version"`
	Dialect   string `json:"dialect"`
	BuiltIn   bool   `json:"built_in"`
	Installed bool   `json:"installed"`
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func miniCommand() *cobra.Command {
	var turns int
	var promptFile string
	cmd := &cobra.Command{
		Use: "mini", Short: "turngate's own small agent, run in sandboxes", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			instruction, err := io.ReadAll(cmd.InOrStdin())
			if err != nil {
				return fmt.Errorf("read the instruction: %w", err)
			}
			base := os.Getenv("OPENAI_BASE_URL")
			if base == "" {
				return usage("mini: OPENAI_BASE_URL is not set; workers start this agent")
			}
			var prompt []byte
			if promptFile != "" {
				if prompt, err = os.ReadFile(promptFile); err != nil {
					return fmt.Errorf("read the system prompt: %w", err)
				}
			}
			return mini.Run(cmd.Context(), mini.Config{
				BaseURL: base, Key: os.Getenv("OPENAI_API_KEY"), Model: os.Getenv("TURNGATE_MODEL"), SystemPrompt: string(prompt),
				Instruction: strings.ToValidUTF8(string(instruction), "�"), MaxTurns: turns, Events: plain.Raw(cmd.OutOrStdout()),
			})
		},
	}
	cmd.Flags().IntVar(&turns, "max-turns", 0, "most model calls")
	cmd.Flags().StringVar(&promptFile, "system-prompt", "", "file with the system prompt")
	return cmd
}

func toolsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "tools", Short: "the trainer's tools as an MCP server, started by agents in sandboxes", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url := os.Getenv(toolserver.EnvURL)
			if url == "" {
				return usage("tools: %s is not set; agents start this server", toolserver.EnvURL)
			}
			return toolserver.Run(cmd.Context(), url, os.Getenv(toolserver.EnvKey))
		},
	}
}
