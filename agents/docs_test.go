package agents_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// rows returns the cells of all rows of tables below a heading of a document.
func rows(t *testing.T, file, heading string) (all [][]string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testenv.Root(t), file))
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(data), heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", file, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	for line := range strings.Lines(text) {
		if row, ok := strings.CutPrefix(strings.TrimSpace(line), "|"); ok {
			cells := strings.Split(strings.TrimSuffix(row, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			all = append(all, cells)
		}
	}
	return all
}

// yes returns the cell of a table for an ability.
func yes(able bool) string {
	if able {
		return "yes"
	}
	return ""
}

// TestDocsListEveryAgent: the table of agents has a row for each, which agrees
// with its Spec. A cell may say more than "yes".
func TestDocsListEveryAgent(t *testing.T) {
	table := rows(t, "docs/agents.md", "\n## The agents")
	for _, s := range agents.All() {
		want := []string{"`" + s.Name + "`", s.Version, s.Dialect, yes(s.SystemPrompt), yes(s.MaxTurns), yes(s.MCP)}
		if s.AnyProgram {
			want[2] = "any"
		}
		i := slices.IndexFunc(table, func(row []string) bool { return slices.Contains(strings.Split(row[0], ", "), want[0]) })
		if i < 0 || len(table[i]) != len(want) {
			t.Errorf("docs/agents.md needs the row | %s |", strings.Join(want, " | "))
			continue
		}
		for column, cell := range table[i][1:] {
			if need := want[column+1]; !strings.Contains(cell, strings.TrimSuffix(need, "yes")) || column > 1 && (need == "") != (cell == "") {
				t.Errorf("docs/agents.md: the row of %s has %q, want %q", s.Name, cell, need)
			}
		}
	}
}

// TestDocsListTransports: the table of transports names every agent that has MCP.
func TestDocsListTransports(t *testing.T) {
	listed := map[string]string{}
	for _, row := range rows(t, "docs/tasks.md", "\n## MCP servers and skills") {
		for name := range strings.SplitSeq(row[0], ", ") {
			listed[strings.Trim(name, "`")] = row[1]
		}
	}
	for _, s := range agents.All() {
		want := ""
		if s.MCP {
			transports := []string{"`stdio`"}
			for _, transport := range []string{schema.TransportSSE, schema.TransportHTTP} {
				if slices.Contains(s.MCPURLs, transport) {
					transports = append(transports, fmt.Sprintf("`%s`", transport))
				}
			}
			want = strings.Join(transports, ", ")
		}
		if s.Dialect != "" && listed[s.Name] != want {
			t.Errorf("docs/tasks.md: %s has the transports %q, want %q", s.Name, listed[s.Name], want)
		}
	}
}

// TestDocsListEveryDialect: the gate's table has a column for each dialect, with
// its agents, and no agent needs another dialect.
func TestDocsListEveryDialect(t *testing.T) {
	table := rows(t, "docs/gate.md", "# The gate")
	i := slices.IndexFunc(table, func(row []string) bool { return row[0] == "agents" })
	if i < 0 {
		t.Fatal("docs/gate.md has no row of agents")
	}
	listed := map[string][]string{}
	for column, name := range table[0] {
		listed[name] = strings.Split(table[i][column], ", ")
	}
	for _, d := range gate.Dialects() {
		if listed[d.Name()] == nil {
			t.Errorf("docs/gate.md: the table has no column for %s", d.Name())
		}
	}
	for _, s := range agents.All() {
		if s.Dialect != "" && !s.AnyProgram && !slices.Contains(listed[s.Dialect], s.Name) {
			t.Errorf("docs/gate.md: %s is not among the agents of the dialect %q", s.Name, s.Dialect)
		}
		if s.Dialect != "" && !slices.ContainsFunc(gate.Dialects(), func(d dialect.Dialect) bool { return d.Name() == s.Dialect }) {
			t.Errorf("%s: the gate has no dialect %q", s.Name, s.Dialect)
		}
	}
}
