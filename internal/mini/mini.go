// Package mini is turngate's own small agent: it gives the model one tool,
// bash, and loops until the model answers without a tool call. It prints its
// events (agents.Event) as JSON lines.
package mini

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Config holds the settings of the agent.
type Config struct {
	BaseURL      string // ends in /v1
	Key          string
	Model        string
	SystemPrompt string
	Instruction  string
	MaxTurns     int           // default 100
	ToolTimeout  time.Duration // limit of one bash command; default 2 minutes
	Events       io.Writer
}

const defaultPrompt = "You are a coding agent in a sandbox. Use the bash tool to do what the user asks, then say in a sentence what you did."

const tools = `[{"type":"function","function":{"name":"bash","description":"Run a shell command and get its output.",` +
	`"parameters":{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}}}]`

const (
	maxTries  = 5
	maxOutput = 30_000
)

type message struct {
	Role       string          `json:"role"`
	Content    string          `json:"content"`
	ToolCalls  json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// Run works on the task until the model answers without a tool call. It returns
// an error if the turns are used up or the model cannot be reached.
func Run(ctx context.Context, c Config) error {
	c.MaxTurns = cmp.Or(c.MaxTurns, 100)
	c.ToolTimeout = cmp.Or(c.ToolTimeout, 2*time.Minute)
	if strings.TrimSpace(c.Instruction) == "" {
		return errors.New("there is no instruction on stdin")
	}
	messages := []json.RawMessage{
		encode(message{Role: "system", Content: cmp.Or(c.SystemPrompt, defaultPrompt)}),
		encode(message{Role: "user", Content: c.Instruction}),
	}
	for range c.MaxTurns {
		raw, usage, err := c.ask(ctx, messages)
		if err != nil {
			c.emit(agents.Event{Kind: "error", Text: err.Error()})
			return err
		}
		var reply struct {
			Content   *string    `json:"content"`
			ToolCalls []toolCall `json:"tool_calls"`
		}
		if err := json.Unmarshal(raw, &reply); err != nil {
			return fmt.Errorf("read the model's message: %w", rawjson.Plain(err))
		}
		// The message is sent back unchanged, byte by byte.
		messages = append(messages, raw)
		if reply.Content != nil && *reply.Content != "" {
			c.emit(agents.Event{Kind: "text", Text: *reply.Content, Usage: usage})
		}
		if len(reply.ToolCalls) == 0 {
			return nil
		}
		for _, call := range reply.ToolCalls {
			out := c.use(ctx, call)
			messages = append(messages, encode(message{Role: "tool", Content: out, ToolCallID: call.ID}))
		}
	}
	c.emit(agents.Event{Kind: "error", Text: "its turns are used up"})
	return fmt.Errorf("no end within %d turns", c.MaxTurns)
}

func (c Config) emit(e agents.Event) { fmt.Fprintf(c.Events, "%s\n", encode(e)) }

func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}

// ask makes one call. It retries if the server is busy or failed.
func (c Config) ask(ctx context.Context, messages []json.RawMessage) (json.RawMessage, *schema.Usage, error) {
	body := encode(map[string]any{"model": c.Model, "messages": messages, "tools": json.RawMessage(tools)})
	for try := 1; ; try++ {
		raw, usage, again, err := c.post(ctx, body, try-1)
		if err == nil || !again || try == maxTries {
			return raw, usage, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-time.After(time.Second << (try - 1)):
		}
	}
}

func (c Config) post(ctx context.Context, body []byte, retries int) (_ json.RawMessage, _ *schema.Usage, again bool, _ error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.BaseURL, "/")+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, nil, false, fmt.Errorf("call the model: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Key)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Stainless-Retry-Count", fmt.Sprint(retries))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, nil, true, fmt.Errorf("call the model: %w", err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, nil, true, fmt.Errorf("read the model's answer: %w", err)
	}
	var got struct {
		Choices []struct{ Message json.RawMessage }
		Usage   schema.Usage
		Error   *struct{ Message string }
	}
	if err := json.Unmarshal(data, &got); err != nil {
		return nil, nil, true, fmt.Errorf("read the model's answer (status %d): %w", res.StatusCode, rawjson.Plain(err))
	}
	if got.Error != nil || res.StatusCode != http.StatusOK {
		text := res.Status
		if got.Error != nil {
			text = got.Error.Message
		}
		return nil, nil, schema.RetryableStatus(res.StatusCode), fmt.Errorf("the model server says: %s", text)
	}
	if len(got.Choices) != 1 {
		return nil, nil, false, fmt.Errorf("the model's answer has %d choices, want 1", len(got.Choices))
	}
	return got.Choices[0].Message, &got.Usage, false, nil
}

// use runs one tool call. The model gets an error as the call's output.
func (c Config) use(ctx context.Context, call toolCall) string {
	c.emit(agents.Event{Kind: "tool_call", Tool: call.Function.Name, ID: call.ID, Input: input(call.Function.Arguments)})
	out := c.bash(ctx, call)
	c.emit(agents.Event{Kind: "tool_result", Tool: call.Function.Name, ID: call.ID, Output: out})
	return out
}

func input(arguments string) json.RawMessage {
	if json.Valid([]byte(arguments)) {
		return json.RawMessage(arguments)
	}
	return encode(arguments)
}

func (c Config) bash(ctx context.Context, call toolCall) string {
	if call.Function.Name != "bash" {
		return fmt.Sprintf("error: there is no tool %q; the only one is bash", call.Function.Name)
	}
	var args struct{ Command string }
	if err := json.Unmarshal([]byte(call.Function.Arguments), &args); err != nil || args.Command == "" {
		return `error: the arguments must be {"command": "..."}`
	}
	ctx, cancel := context.WithTimeout(ctx, c.ToolTimeout)
	defer cancel()
	shell := "/bin/sh"
	if path, err := exec.LookPath("bash"); err == nil {
		shell = path
	}
	cmd := exec.CommandContext(ctx, shell, "-c", args.Command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if len(out) > maxOutput {
		half := maxOutput / 2
		out = bytes.Join([][]byte{out[:half], out[len(out)-half:]}, []byte("\n[…]\n"))
	}
	text := strings.ToValidUTF8(string(out), "�")
	if err != nil {
		text += fmt.Sprintf("\n[%v]", err)
	}
	if text == "" {
		text = "(no output)"
	}
	return text
}
