package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/testenv"
)

var update = flag.Bool("update", false, "write docs/commands.md anew") //nolint:gochecknoglobals // a flag

// TestTheCommandPageIsTrue compares docs/commands.md with the commands and flags.
func TestTheCommandPageIsTrue(t *testing.T) {
	t.Setenv("HOME", "/home/user")
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	path := filepath.Join(testenv.Root(t), "docs", "commands.md")
	want := commandPage(rootCommand(nil, nil, nil))
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/commands.md differs from the commands: go test ./cmd/turngate -run TheCommandPage -update")
	}
}

// commandPage describes each command that is not hidden, with its own flags.
func commandPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands\n\nEvery flag can also be set as a variable `TURNGATE_<FLAG>`, such as `TURNGATE_NATS` for `--nats`; a flag on the command line has priority.\n" +
		"Lists print a `table` that fits the terminal, a `wide` one with everything, or data: `json`, `jsonl`, `yaml`. Records have the keys of [messages.md](messages.md), other lists have the keys of [operate.md](operate.md#keys-of-lists). `--verbose` logs what happens to stderr. `--timeout 10m` ends any command after that time.\n\n" +
		"| exit status | meaning |\n|---|---|\n| 0 | it is done, without a fault |\n| 1 | a rollout or the command has a fault |\n| 2 | a flag, an argument, a credential or a command is wrong |\n| 3 | `--max-cost` or `--max-tokens-total` ended a job |\n| 124 | the time of `--timeout` was over |\n| 130 | it was interrupted: SIGINT, SIGTERM, or the end of its terminal |\n\n" +
		"Services (`up`, `nats`, `worker`, `metrics`, `console`, `serve`, `trainer serve`, `machine serve`, `nats enroll`) run until a signal or the end of `--timeout`, and then end with 0.\n")
	describe(&b, root)
	return b.String()
}

func describe(b *strings.Builder, cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		if c.Runnable() || c.HasParent() && c.Parent().HasParent() {
			fmt.Fprintf(b, "\n## %s\n\n`%s`\n\n%s.\n", c.CommandPath(), c.UseLine(), strings.TrimSuffix(c.Short, "."))
			if c.Long != "" && c.Long != c.Short {
				fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.TrimSpace(c.Long))
			}
			flagTable(b, c)
		}
		describe(b, c)
	}
}

func flagTable(b *strings.Builder, c *cobra.Command) {
	var rows []string
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) { rows = append(rows, flagRow(f)) })
	c.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != "verbose" && f.Name != "timeout" {
			rows = append(rows, flagRow(f))
		}
	})
	rows = slices.DeleteFunc(rows, func(row string) bool { return row == "" })
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n| flag | default | meaning |\n|---|---|---|\n%s", strings.Join(rows, ""))
	}
}

// flagRow is empty for a hidden flag.
func flagRow(f *pflag.Flag) string {
	if f.Hidden || f.Name == "help" {
		return ""
	}
	kind, meaning := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if kind != "" {
		name += " " + kind
	}
	value := f.DefValue
	switch value {
	case "", "[]", "false", "0", "0s":
		value = ""
	default:
		value = "`" + value + "`"
	}
	return fmt.Sprintf("| `%s` | %s | %s |\n", name, value, strings.ReplaceAll(strings.ReplaceAll(meaning, "\n", " "), "|", `\|`))
}

// TestCommandsInTextExist looks up each command and flag that the docs and the pages
// of other folders name within a line: `turngate rollout show --nats`, and alternatives
// as in `turngate job ls|show`. In blocks of code it looks up each line that is a command.
func TestCommandsInTextExist(t *testing.T) {
	root := testenv.Root(t)
	var files []string
	for _, pages := range []string{"*.md", "docs/*.md", "docs/adr/*.md", "deploy/*/*.md", "deploy/helm/*/*.md", "clients/*/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pages))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	continued := regexp.MustCompile(`\\\n\s*`)
	inSpan := regexp.MustCompile("`(?:\\./bin/)?turngate ([^`]+)`")
	// A command ends at a comment, at the next command, and where its explanation begins.
	inBlock := regexp.MustCompile(`^\s*(?:\$ |sudo |[A-Z_]+=\S+ )*(?:[^=\s]*/)?turngate ([^→\s](?:\S+ {0,2})+)`)
	inText, inBlocks := 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := false
		for n, line := range strings.Split(continued.ReplaceAllString(string(text), " "), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				blocks = !blocks
				continue
			}
			pattern, count := inSpan, &inText
			if blocks {
				pattern, count = inBlock, &inBlocks
			}
			for _, m := range pattern.FindAllStringSubmatch(line, -1) {
				*count++
				command, _, _ := strings.Cut(m[1], " # ")
				if err := namesCommand(strings.Fields(command)); err != nil {
					t.Errorf("%s:%d: `turngate %s`: %v", filepath.Base(file), n+1, m[1], err)
				}
			}
		}
	}
	if inText < 50 || inBlocks < 50 {
		t.Errorf("%d and %d commands were found: a pattern is wrong", inText, inBlocks)
	}
}

// namesCommand returns an error unless words begin with a command, and each flag in
// them is one of it.
func namesCommand(words []string) error {
	cmd := rootCommand(nil, nil, nil)
	for i, word := range words {
		if !cmd.HasSubCommands() || strings.HasPrefix(word, "-") || strings.HasPrefix(word, "[") {
			return knowsFlags(cmd, words[i:])
		}
		var next *cobra.Command
		for name := range strings.SplitSeq(strings.TrimRight(word, ".,"), "|") {
			if next = subCommand(cmd, name); next == nil {
				return fmt.Errorf("%s has no command %s", cmd.CommandPath(), name)
			}
		}
		cmd = next
	}
	return nil
}

func subCommand(cmd *cobra.Command, name string) *cobra.Command {
	if name == "…" || name == "..." {
		return cmd
	}
	for _, c := range cmd.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

func knowsFlags(cmd *cobra.Command, words []string) error {
	if cmd.DisableFlagParsing {
		return nil
	}
	flag := regexp.MustCompile(`^\[?--([a-z][a-z0-9-]*)`)
	for _, word := range words {
		if word == "--" {
			return nil
		}
		for part := range strings.SplitSeq(word, "|") {
			m := flag.FindStringSubmatch(part)
			if m != nil && cmd.Flags().Lookup(m[1]) == nil && cmd.InheritedFlags().Lookup(m[1]) == nil {
				return fmt.Errorf("%s has no flag --%s", cmd.CommandPath(), m[1])
			}
		}
	}
	return nil
}
