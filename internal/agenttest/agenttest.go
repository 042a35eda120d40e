// Package agenttest checks that an agent's Spec meets the requirements of the
// worker.
package agenttest

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
)

// Launch returns a launch with text that does damage if an agent puts it into a
// shell command or an argv without quotes.
func Launch() agents.Launch {
	return agents.Launch{
		BaseURL: "http://127.0.0.1:4000", Key: "tg-secret-key", Model: `po"licy $(id)`, Instruction: "--help\n$(touch x) 'q' \"d\" `id`\n",
		SystemPrompt: "system $(id)\n", MaxTurns: 7, MCP: []schema.MCPServer{{Name: "rec", Command: []string{"/bin/rec server", "$(id)"}, Env: map[string]string{"REC": "a \"b\""}}}, Args: []string{"extra", "$(touch y)"}, Dir: "/tmp/.turngate-agent", Installed: "/.turngate/agent", Helper: "/.turngate/turngate",
	}
}

// Run checks one agent.
func Run(t *testing.T, s agents.Spec) {
	l := Launch()
	if err := schema.CheckToken("agent.name", s.Name); err != nil {
		t.Error(err)
	}
	if (len(s.Packages) > 0) != (s.Version != "") {
		t.Error("an agent with packages has a pinned version, and no other")
	}
	packages(t, s)
	c := s.Command(l)
	if !s.AnyProgram && (len(c.Args) == 0 || c.Args[0] == "") {
		t.Fatal("no argv")
	}
	input := arguments(t, s, l, c.Args)
	files := map[string]agents.File{}
	if s.Files != nil {
		var err error
		if files, err = s.Files(l); err != nil {
			t.Fatal(err)
		}
	}
	carried := map[string]bool{}
	note := func(text string) {
		carried["key"] = carried["key"] || strings.Contains(text, l.Key)
		carried["system"] = carried["system"] || strings.Contains(text, "system $(id)")
		carried["mcp"] = carried["mcp"] || strings.Contains(text, "/bin/rec server") && strings.Contains(text, "$(id)") && strings.Contains(text, "REC")
		carried["url"] = carried["url"] || strings.Contains(text, l.BaseURL)
	}
	for path, f := range files {
		if !strings.HasPrefix(path, l.Dir+"/") || f.Mode.Perm()&0o077 != 0 {
			t.Errorf("file %s with mode %v: want it below %s and for its user only", path, f.Mode, l.Dir)
		}
		note(string(f.Data))
	}
	for _, v := range c.Env {
		note(v)
	}
	if s.Dialect != "" {
		if !carried["key"] || !carried["url"] {
			t.Errorf("its key or URL is not passed: %v", carried)
		}
		given := c.Stdin
		for _, arg := range c.Args {
			if f, ok := files[arg]; ok && arg == l.Dir+"/prompt" {
				given += string(f.Data)
			}
		}
		if given != input && messageOf(given) != input {
			t.Errorf("stdin and the file of the prompt have %q, want %q", given, input)
		}
		for name := range c.Env {
			if name == "HOME" || name == "PATH" || name == "LANG" {
				t.Errorf("it sets %s, which is the image's", name)
			}
		}
		if c.Env["NO_PROXY"] == "" {
			t.Error("NO_PROXY is not set: a proxy in the environment would take the loopback calls")
		}
	}
	claims(t, s, l, carried)
	if s.ParseEvent != nil {
		foreignLines(s)
	}
}

// messageOf returns the text of a message in JSON.
func messageOf(line string) string {
	var typed struct{ Message struct{ Content string } }
	if json.Unmarshal([]byte(line), &typed) != nil {
		return ""
	}
	return typed.Message.Content
}

// packages checks the parts of a Spec that describe installed files.
func packages(t *testing.T, s agents.Spec) {
	t.Helper()
	for _, p := range s.Packages {
		if p.Name == "" || p.Version == "" || p.Dir == "" || strings.ContainsAny(p.Version, "^~*<>= ") {
			t.Errorf("package %+v is not pinned", p)
		}
	}
	for name, path := range s.Carries {
		if !slices.Contains(s.Needs, name) {
			t.Errorf("it carries %s, which is not among its needs", name)
		}
		if !slices.ContainsFunc(s.Packages, func(p agents.Package) bool { return strings.HasPrefix(path, p.Dir+"/") }) {
			t.Errorf("%s at %q is in none of its packages", name, path)
		}
	}
	if s.Sessions != "" && !filepath.IsLocal(s.Sessions) {
		t.Errorf("its sessions are in %q: want a path below its folder", s.Sessions)
	}
}

// arguments checks that an argv has no secret, and the instruction only if the
// agent takes it there. It returns the input that the agent must have.
func arguments(t *testing.T, s agents.Spec, l agents.Launch, args []string) string {
	t.Helper()
	all, input := args, l.Instruction
	if s.TaskAsArgument {
		input = ""
		last := len(args) - 1
		option, isValue := strings.CutSuffix(args[last], l.Instruction)
		if plain := option == "" && last > 0 && args[last-1] == "--"; !isValue || !plain && !(strings.HasPrefix(option, "--") && strings.HasSuffix(option, "=")) {
			t.Errorf("the instruction is not its last argument, or may be taken for an option: %q", args)
		}
		args = args[:last]
		if s.CheckTask(strings.Repeat("x", 128<<10-63)) == nil {
			t.Error("a task that is too long for an argument is not refused")
		}
	}
	argv := strings.Join(args, "\x00")
	for what, text := range map[string]string{"key": l.Key, "instruction": strings.TrimSpace(l.Instruction), "system prompt": strings.TrimSpace(l.SystemPrompt)} {
		if strings.Contains(argv, text) {
			t.Errorf("the %s is in its argv: %q", what, all)
		}
	}
	return input
}

// claims checks that the agent carries the settings that it says it takes, and
// refuses the others.
func claims(t *testing.T, s agents.Spec, l agents.Launch, carried map[string]bool) {
	t.Helper()
	if s.SystemPrompt && !carried["system"] {
		t.Error("it is said to take a system prompt, and none is passed")
	}
	if carried["mcp"] != s.MCP {
		t.Errorf("it is said that it takes MCP servers: %v; they are passed: %v", s.MCP, carried["mcp"])
	}
	if refused := s.Check(schema.AgentChoice{Args: []string{"x"}, MCP: l.MCP}) != nil; refused != (!s.MCP && s.Dialect != "") {
		t.Errorf("MCP servers are refused: %v", refused)
	}
	if s.Skills != "" && !filepath.IsLocal(s.Skills) {
		t.Errorf("its skills are in %q: want a path below its folder", s.Skills)
	}
	remote(t, s)
	if !s.SystemPrompt && s.Check(schema.AgentChoice{Args: []string{"x"}, SystemPrompt: "x"}) == nil {
		t.Error("a system prompt that it cannot take is not refused")
	}
	if !s.MaxTurns && s.Check(schema.AgentChoice{Args: []string{"x"}, MaxTurns: 1}) == nil {
		t.Error("a limit of turns that it cannot keep is not refused")
	}
	if s.Check(schema.AgentChoice{Args: []string{"x"}, Version: "0.0.0-none"}) == nil {
		t.Error("another version is not refused")
	}
}

// remote checks MCP servers that run already: the agent's configuration has a
// server with a supported transport, and Check refuses other transports.
func remote(t *testing.T, s agents.Spec) {
	for _, transport := range []string{schema.TransportSSE, schema.TransportHTTP} {
		l := Launch()
		l.MCP = []schema.MCPServer{{Name: "far", URL: "http://far:8000/mcp?a=b", Transport: transport}}
		err := s.Check(schema.AgentChoice{Args: []string{"x"}, MCP: l.MCP})
		if speaks := slices.Contains(s.MCPURLs, transport); speaks != (err == nil) && s.Dialect != "" {
			t.Errorf("it speaks %s: %v, and its check says %v", transport, speaks, err)
		}
		if err != nil || s.Dialect == "" {
			continue
		}
		var config strings.Builder
		if s.Files != nil {
			files, err := s.Files(l)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				config.Write(f.Data)
			}
		}
		for _, v := range s.Command(l).Env {
			config.WriteString(v)
		}
		if !strings.Contains(config.String(), "http://far:8000/mcp?a=b") {
			t.Errorf("the %s server is not passed", transport)
		}
	}
}

// foreignLines gives malformed lines to the agent's ParseEvent.
func foreignLines(s agents.Spec) {
	for _, line := range []string{"", "{", "null", "[]", `"x"`, "{}", `{"type":1}`, "plain text", `{"type":"` + strings.Repeat("x", 1<<16) + `"}`} {
		_ = s.ParseEvent([]byte(line)) // it must not panic
	}
}
