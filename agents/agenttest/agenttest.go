// Package agenttest holds every agent's Spec to what the worker relies on.
package agenttest

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
)

// Launch is a launch with text that breaks whatever puts it into a shell or
// an argv.
func Launch() agents.Launch {
	return agents.Launch{
		BaseURL: "http://127.0.0.1:4000", Key: "tg-secret-key", Model: `po"licy $(id)`, Instruction: "--help\n$(touch x) 'q' \"d\" `id`\n",
		SystemPrompt: "system $(id)\n", MaxTurns: 7, MCP: []schema.MCPServer{{Name: "rec", Command: []string{"/bin/rec server", "$(id)"}, Env: map[string]string{"REC": "a \"b\""}}}, Args: []string{"extra", "$(touch y)"}, Dir: "/tmp/.turngate-agent", Installed: "/.turngate/agent", Helper: "/.turngate/turngate",
	}
}

// Run holds one agent to the contract.
func Run(t *testing.T, s agents.Spec) {
	l := Launch()
	if err := schema.CheckToken("agent.name", s.Name); err != nil {
		t.Error(err)
	}
	if (len(s.Packages) > 0) != (s.Version != "") {
		t.Error("an agent with packages has a pinned version, and no other")
	}
	for _, p := range s.Packages {
		if p.Name == "" || p.Version == "" || p.Dir == "" || strings.ContainsAny(p.Version, "^~*<>= ") {
			t.Errorf("package %+v is not pinned", p)
		}
	}
	if s.Sessions != "" && !filepath.IsLocal(s.Sessions) {
		t.Errorf("its sessions are in %q: want a path below its folder", s.Sessions)
	}
	c := s.Command(l)
	if s.Name != "command" && (len(c.Args) == 0 || c.Args[0] == "") {
		t.Fatal("no argv")
	}
	args, input := c.Args, l.Instruction
	if s.TaskAsArgument {
		input = ""
		last := len(args) - 1
		option, isValue := strings.CutSuffix(args[last], l.Instruction)
		if plain := option == "" && last > 0 && args[last-1] == "--"; !isValue || !plain && !(strings.HasPrefix(option, "--") && strings.HasSuffix(option, "=")) {
			t.Errorf("the instruction is not its last argument, or may be taken for an option: %q", args)
		}
		args = args[:last]
		if s.CheckTask(strings.Repeat("x", agents.MaxArgument+1)) == nil {
			t.Error("a task that is too long for an argument is not refused")
		}
	}
	argv := strings.Join(args, "\x00")
	for what, text := range map[string]string{"key": l.Key, "instruction": strings.TrimSpace(l.Instruction), "system prompt": strings.TrimSpace(l.SystemPrompt)} {
		if strings.Contains(argv, text) {
			t.Errorf("the %s is in its argv: %q", what, c.Args)
		}
	}
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
			t.Errorf("it is not told its key and URL: %v", carried)
		}
		if c.Stdin != input {
			t.Errorf("stdin is %q, want %q", c.Stdin, input)
		}
		if c.Env["NO_PROXY"] == "" {
			t.Error("NO_PROXY is not set: a proxy in the environment would take the loopback calls")
		}
	}
	if s.SystemPrompt && !carried["system"] {
		t.Error("it is said to take a system prompt, and is not told it")
	}
	if carried["mcp"] != s.MCP {
		t.Errorf("it is said that it takes MCP servers: %v; it is told them: %v", s.MCP, carried["mcp"])
	}
	if !s.MCP && s.Check(schema.AgentChoice{Args: []string{"x"}, MCP: l.MCP}) == nil {
		t.Error("MCP servers that it does not know are not refused")
	}
	if !s.SystemPrompt && s.Check(schema.AgentChoice{Args: []string{"x"}, SystemPrompt: "x"}) == nil {
		t.Error("a system prompt that it cannot take is not refused")
	}
	if !s.MaxTurns && s.Check(schema.AgentChoice{Args: []string{"x"}, MaxTurns: 1}) == nil {
		t.Error("a limit of turns that it cannot keep is not refused")
	}
	if s.Check(schema.AgentChoice{Args: []string{"x"}, Version: "0.0.0-none"}) == nil {
		t.Error("another version is not refused")
	}
	if s.ParseEvent != nil {
		foreignLines(s)
	}
}

// foreignLines must not make an agent's reader panic.
func foreignLines(s agents.Spec) {
	for _, line := range []string{"", "{", "null", "[]", `"x"`, "{}", `{"type":1}`, "plain text", `{"type":"` + strings.Repeat("x", 1<<16) + `"}`} {
		_ = s.ParseEvent([]byte(line)) // it must not panic
	}
}
