// Package agents is the catalogue of CLI agents. Each file has the Spec of one
// agent: data, and small functions where data is not enough.
package agents

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Spec describes one agent.
type Spec struct {
	Name    string
	Version string // pinned; empty for agents that are part of turngate or of the task
	// Dialect is the dialect of the gate that the agent uses. Empty: the agent
	// calls no model.
	Dialect string
	// Packages are installed into the host's cache and mounted in the sandbox.
	Packages []Package
	// Glibc is true if the agent needs the GNU C library in the sandbox.
	Glibc bool
	// Needs lists the programs that the agent starts and cannot work without,
	// besides /bin/sh. If the sandbox lacks one, the agent's PATH gets the
	// program of Carries, or else of package programs. A rollout is refused if
	// neither has the program; the error names it.
	Needs []string
	// Carries lists programs in the agent's packages: name → path relative to the
	// folder of the packages. They are linked statically and run in any image.
	Carries map[string]string
	// Solution is true if the agent runs the task's own solution.
	Solution bool
	// AnyProgram is true if the request's arguments are the whole argv.
	AnyProgram bool
	// Person is true if a person at the terminal of the worker's process is the agent.
	Person bool

	// SystemPrompt, MaxTurns and MCP are true if the agent supports these settings
	// of a request. Otherwise a request with the setting is refused.
	SystemPrompt bool
	MaxTurns     bool
	MCP          bool
	// TaskAsArgument is true if the agent reads its task from its argv and not
	// from stdin. The task may then have at most 131,008 bytes.
	TaskAsArgument bool

	// Files returns the files that the sandbox gets before the agent starts, by
	// absolute path. Nil: none.
	Files func(l Launch) (map[string]File, error)
	// Command returns the command that starts the agent.
	Command func(l Launch) Command
	// Tag returns the role of a model call: schema.TagAgent, TagAux or
	// TagSubagent. Nil: every call is a turn of the agent.
	Tag func(h http.Header, c *schema.Call) string
	// ParseEvent reads one line of the agent's stdout. It returns nil for a line
	// that is not an event.
	ParseEvent func(line []byte) *Event
	// Sessions is the path, relative to Launch.Dir, of the agent's own records of
	// its sessions. They are kept as an artifact.
	Sessions string
	// Skills is the path, relative to Launch.Dir, of the folder from which the
	// agent reads skills. A skill is a folder with a SKILL.md. Empty: the agent
	// has no skills.
	Skills string
	// MCPURLs lists the transports that the agent supports for MCP servers that
	// run already.
	MCPURLs []string
}

// File is a file for the sandbox.
type File struct {
	Data []byte
	Mode fs.FileMode
}

// Launch holds the settings with which an agent starts.
type Launch struct {
	BaseURL      string // URL of the gate in the sandbox, without a path
	Key          string // API key of the gate; goes into the environment or a file, never into argv
	Model        string
	Instruction  string
	SystemPrompt string
	MaxTurns     int
	MCP          []schema.MCPServer
	Args         []string
	Dir          string // the agent's folder for configuration and state, writable
	Installed    string // folder in which the agent's packages are mounted
	Helper       string // path of the turngate binary in the sandbox
}

// systemPromptFile is Spec.Files of an agent with no other files.
func systemPromptFile(l Launch) (map[string]File, error) {
	files := map[string]File{}
	addSystemPrompt(files, l.Dir+"/system.md", l)
	return files, nil
}

// addSystemPrompt adds a file with the system prompt, if there is one.
func addSystemPrompt(files map[string]File, path string, l Launch) {
	if l.SystemPrompt != "" {
		files[path] = File{[]byte(l.SystemPrompt), 0o600}
	}
}

// Command is an argv, its environment and its stdin.
type Command struct {
	Args  []string
	Env   map[string]string
	Stdin string
}

// Event is a message or an action of an agent, for display. The raw log is kept
// too.
type Event struct {
	Kind   string          `json:"kind"`           // text, tool_call, tool_result, usage, error, other
	Text   string          `json:"text,omitempty"` // message of the agent, or the error
	Tool   string          `json:"tool,omitempty"`
	ID     string          `json:"id,omitempty"` // id of the tool call
	Input  json.RawMessage `json:"input,omitempty"`
	Output string          `json:"output,omitempty"`
	Usage  *schema.Usage   `json:"usage,omitempty"`
}

// counted is the form in which several agents print the tokens of a turn.
type counted struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
}

func (c counted) event() *Event {
	return &Event{Kind: "usage", Usage: &schema.Usage{PromptTokens: c.Input, CompletionTokens: c.Output}}
}

// All lists every agent.
func All() []Spec {
	return []Spec{
		opencode(),
		pi(),
		codex(),
		claudeCode(),
		geminiCLI(),
		qwenCode(),
		kilo(),
		copilot(),
		droid(),
		cline(),
		kimi(),
		continueCLI(),
		grok(),
		grokCLI(),
		miniSpec(),
		command(),
		oracle(),
		nop(),
	}
}

// Find returns the agent of this name.
func Find(specs []Spec, name string) (Spec, error) {
	i := slices.IndexFunc(specs, func(s Spec) bool { return s.Name == name })
	if i < 0 {
		names := make([]string, len(specs))
		for i, s := range specs {
			names[i] = s.Name
		}
		return Spec{}, &schema.InvalidError{Field: "agent.name", Value: name, Want: "want one of " + strings.Join(names, ", ")}
	}
	return specs[i], nil
}

// Check refuses settings of a request that this agent does not support. Its error
// is a *schema.InvalidError.
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
	if err := s.checkMCP(a.MCP); err != nil {
		return err
	}
	if len(a.Tools) > 0 && !s.MCP {
		return &schema.InvalidError{Field: "agent.tools", Value: a.Tools[0].Name, Want: "none: they reach agents through MCP, and " + s.Name + " knows no MCP servers"}
	}
	if s.AnyProgram && len(a.Args) == 0 {
		return &schema.InvalidError{Field: "agent.args", Value: "none", Want: "the argv to run"}
	}
	return nil
}

// common returns the environment of every agent that calls the gate.
func common(l Launch) map[string]string {
	return map[string]string{
		"OPENAI_BASE_URL": l.BaseURL + "/v1", "OPENAI_API_KEY": l.Key, "TURNGATE_MODEL": l.Model,
		"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost",
	}
}

// withoutTools tags a call that offers no tools as TagAux: it asks for a title or
// a summary, or is a probe.
func withoutTools(c *schema.Call) string {
	if len(c.Tools) == 0 {
		return schema.TagAux
	}
	return schema.TagAgent
}

// maxArgument is the size in bytes of the longest task that fits into an argument.
// Linux allows 128 KiB, including the option's name.
const maxArgument = 128<<10 - 64

// CheckTask refuses an instruction that is too long for this agent.
func (s Spec) CheckTask(instruction string) error {
	if !s.TaskAsArgument || len(instruction) <= maxArgument {
		return nil
	}
	return &schema.InvalidError{Field: "task.instruction", Value: fmt.Sprintf("%d bytes", len(instruction)), Want: fmt.Sprintf("at most %d: %s takes its task as an argument", maxArgument, s.Name)}
}

// nodePackage is Node, for agents in JavaScript.
func nodePackage() Package {
	return Package{Name: "node-linux-{arch}", Version: "24.21.0", Dir: "node"}
}

// ripgrepPackage is a static ripgrep. Agents with a search tool that starts rg
// would otherwise try to download it.
func ripgrepPackage() Package {
	return Package{Name: "@vscode/ripgrep-linux-{arch}", Version: "1.18.0", Dir: "ripgrep"}
}

// ripgrep returns the path of the program in ripgrepPackage, for Spec.Carries.
func ripgrep() map[string]string { return map[string]string{"rg": "ripgrep/bin/rg"} }

func quote(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}
