// Package agents is the catalogue of CLI agents: a Spec per file, which is
// data about one agent with small functions where data cannot do.
package agents

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Spec describes one agent.
type Spec struct {
	Name    string
	Version string // pinned; empty for agents that are part of turngate or of the task
	// Dialect is the gate dialect that it is set up to speak. Empty: it calls
	// no model.
	Dialect string
	// Packages are installed into the host's cache and mounted in the sandbox.
	Packages []Package
	// Glibc says that it runs only where the GNU C library is.
	Glibc bool
	// Solution says that it runs the task's own solution.
	Solution bool

	// SystemPrompt, MaxTurns and MCP say whether it can honour those wishes; if
	// not, a request that has them is refused.
	SystemPrompt bool
	MaxTurns     bool
	MCP          bool
	// TaskAsArgument says that it reads its task from its argv, where it may be
	// MaxArgument bytes long, and not from its input.
	TaskAsArgument bool

	// Files are put into the sandbox before it starts, by absolute path.
	Files func(l Launch) (map[string]File, error)
	// Command gives how it is started.
	Command func(l Launch) Command
	// Tag tells what a model call is to the rollout by this agent's habits:
	// schema.TagAgent, TagAux or TagSubagent. Nil: every call is a turn.
	Tag func(h http.Header, c *schema.Call) string
	// ParseEvent reads one line of its stdout; nil for a line that is none.
	ParseEvent func(line []byte) *Event
	// Sessions is where it writes down its own sessions, below Launch.Dir. They
	// are kept as an artifact.
	Sessions string
}

// File is one file for the sandbox.
type File struct {
	Data []byte
	Mode fs.FileMode
}

// Launch is what an agent is told.
type Launch struct {
	BaseURL      string // of the gate in the sandbox, without a path
	Key          string // its API key; goes into the environment or a file, never into argv
	Model        string
	Instruction  string
	SystemPrompt string
	MaxTurns     int
	MCP          []schema.MCPServer
	Args         []string
	Dir          string // a folder of its own for configuration and state, writable
	Installed    string // where its packages are mounted
	Helper       string // the turngate binary in the sandbox
}

// Command is an argv, its environment and what it reads.
type Command struct {
	Args  []string
	Env   map[string]string
	Stdin string
}

// Event is one thing that an agent said or did, for people who watch. The raw
// log is kept beside.
type Event struct {
	Kind   string          `json:"kind"`           // text, tool_call, tool_result, usage, error, other
	Text   string          `json:"text,omitempty"` // what it said, or the error
	Tool   string          `json:"tool,omitempty"`
	ID     string          `json:"id,omitempty"` // of the tool call
	Input  json.RawMessage `json:"input,omitempty"`
	Output string          `json:"output,omitempty"`
	Usage  *schema.Usage   `json:"usage,omitempty"`
}

// counted is how several agents print the tokens of a turn.
type counted struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
}

func (c counted) event() *Event {
	return &Event{Kind: "usage", Usage: &schema.Usage{PromptTokens: c.Input, CompletionTokens: c.Output}}
}

// All lists every agent.
func All() []Spec {
	return []Spec{opencode(), pi(), codex(), claudeCode(), geminiCLI(), qwenCode(), kilo(), copilot(), droid(), cline(), kimi(), continueCLI(), grok(), grokCLI(), miniSpec(), command(), oracle(), nop()}
}

// Find returns the agent of this name.
func Find(specs []Spec, name string) (Spec, error) {
	i := slices.IndexFunc(specs, func(s Spec) bool { return s.Name == name })
	if i < 0 {
		names := make([]string, len(specs))
		for i, s := range specs {
			names[i] = s.Name
		}
		return Spec{}, &schema.InvalidError{Field: "agent.name", Value: name, Want: "one of " + strings.Join(names, ", ")}
	}
	return specs[i], nil
}

// Check refuses wishes that this agent cannot honour.
func (s Spec) Check(a schema.AgentChoice) error {
	if a.Version != "" && a.Version != s.Version {
		return &schema.InvalidError{Field: "agent.version", Value: a.Version, Want: fmt.Sprintf("%q, the version of %s that this worker has", s.Version, s.Name)}
	}
	if a.SystemPrompt != "" && !s.SystemPrompt {
		return &schema.InvalidError{Field: "agent.system_prompt", Value: a.SystemPrompt, Want: "none: " + s.Name + " takes no system prompt"}
	}
	if a.MaxTurns != 0 && !s.MaxTurns {
		return &schema.InvalidError{Field: "agent.max_turns", Value: fmt.Sprint(a.MaxTurns), Want: "none: " + s.Name + " cannot limit its turns; gate.max_calls can"}
	}
	if len(a.MCP) > 0 && !s.MCP {
		return &schema.InvalidError{Field: "agent.mcp", Value: a.MCP[0].Name, Want: "none: " + s.Name + " knows no MCP servers"}
	}
	if len(a.Tools) > 0 && !s.MCP {
		return &schema.InvalidError{Field: "agent.tools", Value: a.Tools[0].Name, Want: "none: they reach agents through MCP, and " + s.Name + " knows no MCP servers"}
	}
	if s.Name == "command" && len(a.Args) == 0 {
		return &schema.InvalidError{Field: "agent.args", Value: "none", Want: "the argv to run"}
	}
	return nil
}

// common is the environment of every agent that speaks to the gate.
func common(l Launch) map[string]string {
	return map[string]string{
		"OPENAI_BASE_URL": l.BaseURL + "/v1", "OPENAI_API_KEY": l.Key, "TURNGATE_MODEL": l.Model,
		"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", "LANG": "C.UTF-8",
	}
}

// withoutTools takes a call that offers no tools for one beside the work: a
// title, a summary, a probe.
func withoutTools(c *schema.Call) string {
	if len(c.Tools) == 0 {
		return schema.TagAux
	}
	return schema.TagAgent
}

// MaxArgument is how long in bytes a task may be that is an argument: Linux
// passes 128 KiB, of which some are for the option's name.
const MaxArgument = 128<<10 - 64

// CheckTask refuses a task that this agent cannot be given.
func (s Spec) CheckTask(instruction string) error {
	if !s.TaskAsArgument || len(instruction) <= MaxArgument {
		return nil
	}
	return &schema.InvalidError{Field: "task.instruction", Value: fmt.Sprintf("%d bytes", len(instruction)), Want: fmt.Sprintf("at most %d: %s takes its task as an argument", MaxArgument, s.Name)}
}

// nodePackage is Node for agents that are JavaScript.
func nodePackage() Package {
	return Package{Name: "node-linux-{arch}", Version: "24.21.0", Dir: "node"}
}

// mcpServers is the form in which most agents take MCP servers. more is what
// one of them wants beside.
func mcpServers(l Launch, more map[string]any) map[string]any {
	all := map[string]any{}
	for _, m := range l.MCP {
		server := map[string]any{"command": m.Command[0], "args": append([]string{}, m.Command[1:]...)}
		if len(m.Env) > 0 {
			server["env"] = m.Env
		}
		maps.Copy(server, more)
		all[m.Name] = server
	}
	return all
}

func quote(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}
