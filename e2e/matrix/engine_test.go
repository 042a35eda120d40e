package matrix_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/schema"
)

// engine is a model server with vLLM's fields. The first segment of a path is the
// name of a mode, which says how the server answers. A token is a byte, or one of a
// few marks.
type engine struct {
	modes map[string]mode

	mu    sync.Mutex
	asked map[schema.ID][]string // the prompts of a rollout's requests, the tail of each
}

// Token ids that are no byte.
const (
	endOfTurn = 1000 + iota
	beginOfTurn
	doubleL // "ll", when a text is read again
)

func serveEngine(t *testing.T, modes []mode) (*engine, string) {
	t.Helper()
	e := &engine{modes: map[string]mode{}, asked: map[schema.ID][]string{}}
	for _, m := range modes {
		e.modes[m.name] = m
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{mode}/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"tiny","object":"model","max_model_len":200000}]}`))
	})
	mux.HandleFunc("POST /{mode}/v1/chat/completions", e.complete)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return e, srv.URL
}

// requests returns the number of requests of a rollout.
func (e *engine) requests(id schema.ID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.asked[id])
}

// message is a message of a conversation, as far as the engine reads it.
type message struct {
	Role             string          `json:"role"`
	Content          json.RawMessage `json:"content"`
	Reasoning        string          `json:"reasoning"`
	ReasoningContent string          `json:"reasoning_content"`
	ToolCalls        []struct {
		Function struct{ Name, Arguments string } `json:"function"`
	} `json:"tool_calls"`
}

// question is one request.
type question struct {
	Stream   bool      `json:"stream"`
	Messages []message `json:"messages"`
	Tools    []struct {
		Function struct {
			Name       string
			Parameters struct {
				Properties map[string]struct{ Type any }
				Required   []string
			}
		}
	} `json:"tools"`
}

// results counts the results of tools in the conversation.
func (q *question) results() (n int) {
	for i := range q.Messages {
		if q.Messages[i].Role == "tool" {
			n++
		}
	}
	return n
}

// lacksReasoning reports whether a message with tool calls has no reasoning under a name.
func (q *question) lacksReasoning(name string) bool {
	return slices.ContainsFunc(q.Messages, func(m message) bool {
		reasoning := m.ReasoningContent
		if name == "reasoning" {
			reasoning = m.Reasoning
		}
		return len(m.ToolCalls) > 0 && reasoning == ""
	})
}

// shell returns a call of the agent's shell tool, and false if the request offers none.
func (q *question) shell(id, command string) (call map[string]any, ok bool) {
	for _, name := range []string{"bash", "Bash", "shell", "exec_command", "run_shell_command", "Execute", "execute_command", "run_commands", "run_terminal_command", "Shell"} {
		for _, tool := range q.Tools {
			if tool.Function.Name != name {
				continue
			}
			args := map[string]any{}
			for _, required := range tool.Function.Parameters.Required {
				args[required] = "a command"
			}
			for _, key := range []string{"command", "cmd", "script", "commands"} {
				p, ok := tool.Function.Parameters.Properties[key]
				switch {
				case !ok:
					continue
				case key == "commands":
					args[key] = []string{command}
				case p.Type == "array":
					args[key] = []string{"/bin/sh", "-c", command}
				default:
					args[key] = command
				}
				text, err := json.Marshal(args)
				if err != nil {
					return nil, false
				}
				// With white space and an order that clients do not keep.
				spaced := strings.Replace(string(text), "{", "{ ", 1)
				return map[string]any{"id": id, "type": "function", "function": map[string]any{"name": name, "arguments": spaced}}, true
			}
		}
	}
	return nil, false
}

// answer is one answer of the model, in the form of its message.
type answer struct {
	text, reasoning string
	calls           []map[string]any
	finish          any // a text or nil
}

func say(text string) answer { return answer{text: text, finish: "stop"} }

// body returns the text that the model wrote, by which its tokens are made.
func (a *answer) body() string {
	b := think(a.reasoning) + a.text
	for _, c := range a.calls {
		f, _ := c["function"].(map[string]any)
		arguments, ok := f["arguments"].(string)
		if !ok {
			text, _ := json.Marshal(f["arguments"]) // of strings
			arguments = string(text)
		}
		b += fmt.Sprintf("<call>%v %s</call>", f["name"], arguments)
	}
	return b
}

func think(text string) string {
	if text == "" {
		return ""
	}
	return "<think>" + text + "</think>"
}

func (m *message) text() string {
	var text string
	if json.Unmarshal(m.Content, &text) == nil {
		return text
	}
	var parts []struct{ Text string }
	_ = json.Unmarshal(m.Content, &parts) // null
	for _, p := range parts {
		text += p.Text
	}
	return text
}

// render is the chat template.
func (m mode) render(q *question) (ids []int32) {
	for i := range q.Messages {
		said := &q.Messages[i]
		ids = append(ids, beginOfTurn)
		if said.Role != "assistant" {
			ids = append(append(ids, bytesOf("<"+said.Role+">"+said.text())...), endOfTurn)
			continue
		}
		body := said.text()
		if !m.strips {
			body = think(said.ReasoningContent+said.Reasoning) + body
		}
		for _, c := range said.ToolCalls {
			body += fmt.Sprintf("<call>%s %s</call>", c.Function.Name, c.Function.Arguments)
		}
		own := bytesOf(body)
		if m.merges {
			own = merged(own)
		}
		ids = append(append(ids, own...), endOfTurn)
	}
	return append(ids, beginOfTurn)
}

func bytesOf(s string) []int32 {
	ids := make([]int32, 0, len(s))
	for _, b := range []byte(s) {
		ids = append(ids, int32(b))
	}
	return ids
}

func merged(ids []int32) (out []int32) {
	for i := 0; i < len(ids); i++ {
		if i+1 < len(ids) && ids[i] == 'l' && ids[i+1] == 'l' {
			out = append(out, doubleL)
			i++
		} else {
			out = append(out, ids[i])
		}
	}
	return out
}

func (e *engine) complete(w http.ResponseWriter, r *http.Request) {
	m, ok := e.modes[r.PathValue("mode")]
	var q question
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || !ok {
		http.Error(w, fmt.Sprintf("mode %q: %v", r.PathValue("mode"), err), http.StatusBadRequest)
		return
	}
	if key, err := schema.ParseKey(r.Header.Get("X-Request-Id")); err == nil {
		e.mu.Lock()
		last := q.Messages[len(q.Messages)-1]
		e.asked[key.Rollout] = append(e.asked[key.Rollout], fmt.Sprintf("%d messages, the last: %s %.80s", len(q.Messages), last.Role, last.text()))
		e.mu.Unlock()
	}
	a := say("A title")
	if _, works := q.shell("", ""); works {
		a = m.answer(&q)
	}
	if m.thinks && q.lacksReasoning(m.reasoningField()) {
		http.Error(w, `{"object":"error","message":"a tool call lacks its reasoning","type":"BadRequestError","code":400}`, http.StatusBadRequest)
		return
	}
	if m.breaks != nil && m.breaks(&q) {
		panic(http.ErrAbortHandler) // the connection breaks
	}
	if m.cuts != nil && m.cuts(&q) {
		w = &cutting{ResponseWriter: w}
	}
	m.write(w, &q, &a)
}

// cutting breaks the connection after the beginning of an answer.
type cutting struct {
	http.ResponseWriter
	n int
}

func (c *cutting) Write(p []byte) (int, error) {
	if c.n++; c.n > 2 || !bytes.HasPrefix(p, []byte("data: ")) {
		_, _ = c.ResponseWriter.Write(p[:len(p)/2]) // the client may be gone
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

// write writes an answer, whole or as a stream.
func (m mode) write(w http.ResponseWriter, q *question, a *answer) {
	prompt, ids := m.render(q), bytesOf(a.body())
	if a.finish != "length" {
		ids = append(ids, endOfTurn)
	}
	probs := make([]any, len(ids))
	for i := range probs {
		probs[i] = map[string]any{"token": "t", "logprob": -0.1 - 0.001*float64(i%7), "bytes": nil, "top_logprobs": []any{}}
	}
	said := map[string]any{"role": "assistant", "content": a.text}
	if a.text == "" && (len(a.calls) > 0 || m.nullContent) {
		said["content"] = nil
	}
	if a.reasoning != "" {
		said[m.reasoningField()] = a.reasoning
	}
	if a.calls != nil {
		said["tool_calls"] = a.calls
	}
	usage := map[string]any{"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
	choice := map[string]any{"index": 0, "finish_reason": a.finish, "logprobs": map[string]any{"content": probs}, "token_ids": ids}
	top := map[string]any{"id": "c", "model": "tiny", "created": 1, "prompt_token_ids": prompt}
	if m.spoil != nil {
		m.spoil(top, choice)
	}
	if !q.Stream {
		choice["message"] = said
		top["object"], top["choices"], top["usage"] = "chat.completion", []any{choice}, usage
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(top) // fails if the client went away
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	top["object"] = "chat.completion.chunk"
	deltas := m.deltas
	if deltas == nil {
		deltas = oneDelta
	}
	send := func(choices []any, more map[string]any) {
		chunk := maps.Clone(top)
		chunk["choices"] = choices
		maps.Copy(chunk, more)
		text, err := json.Marshal(chunk)
		if err == nil {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
		}
		delete(top, "prompt_token_ids") // only the first chunk has them
	}
	send([]any{map[string]any{"index": 0, "delta": map[string]any{"role": "assistant", "content": ""}, "finish_reason": nil}}, nil)
	all := deltas(said)
	for i, d := range all {
		if d == nil { // a chunk without a choice
			send([]any{}, nil)
			continue
		}
		piece := map[string]any{"index": 0, "delta": d, "finish_reason": nil}
		if i == len(all)-1 {
			piece = maps.Clone(choice)
			piece["delta"] = d
		}
		send([]any{piece}, nil)
	}
	send([]any{}, map[string]any{"usage": usage})
	_, _ = w.Write([]byte("data: [DONE]\n\n"))
}

// oneDelta sends a message in one piece.
func oneDelta(said map[string]any) []map[string]any {
	d := maps.Clone(said)
	if calls, ok := said["tool_calls"].([]map[string]any); ok {
		numbered := make([]map[string]any, len(calls))
		for i, c := range calls {
			numbered[i] = maps.Clone(c)
			numbered[i]["index"] = i
		}
		d["tool_calls"] = numbered
	}
	return []map[string]any{d}
}

// inFragments sends each character of a text and of each call's arguments alone, the
// calls by turns, with the role in each piece and chunks without a choice between them.
func inFragments(said map[string]any) (all []map[string]any) {
	add := func(d map[string]any) {
		d["role"] = "assistant"
		all = append(all, d, nil)
	}
	for _, field := range []string{"reasoning_content", "reasoning", "content"} {
		text, _ := said[field].(string)
		for _, r := range text {
			add(map[string]any{field: string(r)})
		}
	}
	calls, _ := said["tool_calls"].([]map[string]any)
	longest := 0
	var texts []string
	for i, c := range calls {
		f, _ := c["function"].(map[string]any)
		text, _ := f["arguments"].(string)
		texts, longest = append(texts, text), max(longest, len(text))
		add(map[string]any{"tool_calls": []any{map[string]any{"index": i, "id": c["id"], "type": "function", "function": map[string]any{"name": f["name"], "arguments": ""}}}})
	}
	for at := range longest {
		for i, text := range slices.Backward(texts) {
			if at < len(text) {
				add(map[string]any{"tool_calls": []any{map[string]any{"index": i, "function": map[string]any{"arguments": text[at : at+1]}}}})
			}
		}
	}
	return append(all, map[string]any{})
}
