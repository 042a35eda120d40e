package trajectory

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Bounds of imported trajectories.
const (
	maxImported = 512     // trajectories
	maxFiles    = 1 << 30 // bytes of their files
	dialectATIF = "atif"  // of the imported calls
	genImported = "given" // generation of each imported answer: an agent got it
)

// Imported is a transcript that was made of trajectories in ATIF.
type Imported struct {
	Transcript []byte
	Committed  []schema.Committed // every answer
	Notes      []string           // on the parts that are left out
}

// Import makes a transcript of trajectories in ATIF that another program has written, such
// as the agents of Harbor. Each step of the agent becomes a call, with the messages, tool
// calls, observations, token ids and log-probs of the trajectory. Trajectories within them
// or in other files are conversations of their own. read reads a file by the path that a
// trajectory has for it; names are the files of the agent itself.
// Fields of an unknown form are left out. Without a call the error is ErrNoCalls, or a
// *TranscriptError with the reason for which a file was not read.
func Import(id schema.ID, names []string, read func(name string) ([]byte, error)) (*Imported, error) {
	m := &importer{id: id, read: read, seen: map[string]bool{}, left: maxContent, files: maxFiles, Imported: &Imported{}}
	var packed bytes.Buffer
	z, err := zstd.NewWriter(&packed, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20))
	if err != nil {
		return nil, fmt.Errorf("import a trajectory: %w", err)
	}
	m.lines = json.NewEncoder(z)
	m.lines.SetEscapeHTML(false)
	for i := 0; i < len(names) && err == nil; i++ {
		err = m.file(names[i], schema.TagAgent)
	}
	for len(m.later) > 0 && err == nil {
		next := m.later[0]
		m.later = m.later[1:]
		err = next()
	}
	if errors.Is(err, errEnough) {
		m.note("The calls after call %d are left out: the trajectory is larger than the bounds of a reader.", m.calls)
		err = nil
	}
	if cerr := z.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("import a trajectory: %w", err)
	case m.calls == 0 && m.broken != nil:
		return nil, m.broken
	case m.calls == 0:
		return nil, fmt.Errorf("import a trajectory: %w", ErrNoCalls)
	}
	m.Transcript = packed.Bytes()
	return m.Imported, nil
}

type importer struct {
	*Imported
	id     schema.ID
	read   func(string) ([]byte, error)
	lines  *json.Encoder
	calls  int
	left   int              // bytes that the messages may have
	files  int              // bytes that further files may have
	count  int              // trajectories
	seen   map[string]bool  // files
	later  []func() error   // further trajectories
	broken *TranscriptError // of the first file that cannot be read
}

const maxNotes = 20

func (m *importer) note(format string, args ...any) {
	if len(m.Notes) < maxNotes {
		m.Notes = append(m.Notes, schema.Clip(fmt.Sprintf(format, args...), 400))
	}
}

// file imports a file. One that cannot be read becomes a note.
func (m *importer) file(name, tag string) error {
	if m.seen[name] {
		return nil
	}
	m.seen[name] = true
	data, err := m.read(name)
	if m.files -= len(data); m.files < 0 {
		return errEnough
	}
	var t rawjson.Loose
	if err == nil {
		if t, err = rawjson.ReadLoose(data); err == nil && t.List("steps") == nil {
			err = errors.New("it has no list of steps")
		}
	}
	if err != nil {
		if m.broken == nil {
			m.broken = &TranscriptError{0, fmt.Sprintf("%s: %v", name, err)}
		}
		m.note("%s was not read: %v", name, err)
		return nil
	}
	return m.trajectory(t, tag, path.Dir(name))
}

// trajectory imports one trajectory, and notes the further ones that it names. Their files
// are in the folder of its own file.
func (m *importer) trajectory(t rawjson.Loose, tag, folder string) error {
	if m.count++; m.count > maxImported {
		return errEnough
	}
	agent := t.Object("agent")
	c := &importedTalk{tag: tag, model: agent.Text("model_name"), folder: folder, within: map[string]bool{}}
	subagents := t.List("subagent_trajectories")
	for _, raw := range subagents {
		c.within[rawjson.LooseOf(raw).Text("trajectory_id")] = true
	}
	if tools := agent.List("tool_definitions"); tools != nil {
		c.tools = agent["tool_definitions"]
	}
	for _, raw := range t.List("steps") {
		if err := m.step(c, raw); err != nil {
			return err
		}
	}
	if next := t.Text("continued_trajectory_ref"); next != "" {
		m.later = slices.Insert(m.later, 0, func() error { return m.file(path.Join(folder, next), tag) })
	}
	for _, raw := range subagents {
		sub := rawjson.LooseOf(raw)
		role := schema.TagSubagent
		if sub.Object("extra").Text("role") == schema.TagAux {
			role = schema.TagAux
		}
		m.later = append(m.later, func() error { return m.trajectory(sub, role, folder) })
	}
	return nil
}

// importedTalk is a conversation.
type importedTalk struct {
	tag, model string
	tools      json.RawMessage   // nil: the first call has told of them, or there are none
	base, keep int               // the last call, and the number of its messages
	fresh      []json.RawMessage // the messages behind them
	folder     string
	within     map[string]bool // ids of the trajectories that it contains
}

func (m *importer) add(c *importedTalk, message any) error {
	raw, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if m.left -= perMessage + len(raw); m.left < 0 {
		return errEnough
	}
	c.fresh = append(c.fresh, raw)
	return nil
}

// step adds the messages of a step to the conversation, and the call that it is.
func (m *importer) step(c *importedTalk, raw json.RawMessage) error {
	s := rawjson.LooseOf(raw)
	if s == nil {
		m.note("A step is left out: it is not an object.")
		return nil
	}
	text := importedContent(s["message"])
	var err error
	switch source := s.Text("source"); source {
	case sourceAgent:
		answer := importedAnswer(s, text)
		n := s.Number("llm_call_count")
		if s.Bool("is_copied_context") || n != nil && *n == 0 {
			err = m.add(c, answer)
		} else {
			err = m.call(c, s, answer)
		}
	default:
		if s.Has("message") {
			err = m.add(c, map[string]any{"role": cmp.Or(source, sourceUser), "content": text})
		}
	}
	for _, raw := range s.Object("observation").List("results") {
		if err != nil {
			return err
		}
		err = m.observe(c, rawjson.LooseOf(raw))
	}
	return err
}

// observe adds the result of a tool, and notes the files of the agents that it started.
func (m *importer) observe(c *importedTalk, o rawjson.Loose) error {
	for _, raw := range o.List("subagent_trajectory_ref") {
		ref := rawjson.LooseOf(raw)
		if name := ref.Text("trajectory_path"); name != "" && !c.within[ref.Text("trajectory_id")] {
			m.later = append(m.later, func() error { return m.file(path.Join(c.folder, name), schema.TagSubagent) })
		}
	}
	message := map[string]any{"role": sourceUser, "content": importedContent(o["content"])}
	if id := cmp.Or(o.Text("source_call_id"), o.Object("extra").Text("tool_call_id")); id != "" {
		message["role"], message["tool_call_id"] = "tool", id
	}
	return m.add(c, message)
}

func importedAnswer(s rawjson.Loose, text any) map[string]any {
	answer := map[string]any{"role": "assistant", "content": text}
	if r := s.Text("reasoning_content"); r != "" {
		answer["reasoning_content"] = r
	}
	var tools []any
	for _, raw := range s.List("tool_calls") {
		t := rawjson.LooseOf(raw)
		arguments := t.Text("arguments")
		if arguments == "" {
			arguments = string(t["arguments"])
		}
		tools = append(tools, map[string]any{"id": t.Text("tool_call_id"), "type": "function", "function": map[string]any{"name": t.Text("function_name"), "arguments": arguments}})
	}
	if tools != nil {
		answer["tool_calls"] = tools
	}
	return answer
}

// importedContent returns a text, or a list of parts in the form of OpenAI's messages.
func importedContent(raw json.RawMessage) any {
	list := rawjson.LooseList(raw)
	if list == nil {
		if string(raw) == "null" {
			return ""
		}
		return text(raw)
	}
	parts := []any{}
	for _, raw := range list {
		p := rawjson.LooseOf(raw)
		source := p.Object("source")
		switch kind := p.Text("type"); kind {
		case "text":
			parts = append(parts, map[string]any{"type": "text", "text": p.Text("text")})
		case "image":
			parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]any{"url": source.Text("path")}})
		case "audio":
			at := source.Text("path")
			if strings.HasPrefix(at, "data:") {
				at = source.Text("media_type")
			}
			parts = append(parts, map[string]any{"type": "text", "text": "[audio " + at + "]"})
		default:
			parts = append(parts, map[string]any{"type": "text", "text": "[" + kind + "]"})
		}
	}
	return parts
}

// call writes the lines of a call and its answer, which the conversation has from then on.
func (m *importer) call(c *importedTalk, s rawjson.Loose, answer map[string]any) error {
	if m.calls == maxCalls {
		return errEnough
	}
	m.calls++
	before := c.keep
	if c.keep += len(c.fresh); c.fresh == nil {
		c.fresh = []json.RawMessage{}
	}
	key := schema.Key{Rollout: m.id, Attempt: 1, Call: m.calls}
	extra := s.Object("extra")
	ms := extra.Count("ms") // which turngate writes
	begun := s.Time("timestamp").UnixMilli() - ms
	if s.Time("timestamp").IsZero() {
		begun = 0
	}
	request := &schema.Call{
		V: schema.Version, Key: key.String(), Tag: c.tag, Dialect: dialectATIF, Model: cmp.Or(s.Text("model_name"), c.model),
		Messages: c.fresh, Tools: c.tools, Base: c.base, Keep: before,
	}
	if c.base == 0 {
		request.Keep = 0
	}
	c.tools = nil
	message, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	reply := &schema.Reply{V: schema.Version, Message: message, FinishReason: extra.Text("finish_reason")}
	importMetrics(s.Object("metrics"), reply)
	if extra.List("policy_versions") != nil { // which turngate writes
		_ = json.Unmarshal(extra["policy_versions"], &reply.Versions) // without versions of another form
	}
	if m.left -= perCall + len(message) + len(reply.PromptIDs) + len(reply.CompletionIDs) + len(reply.Logprobs); m.left < 0 {
		m.calls--
		return errEnough
	}
	if err := m.lines.Encode(&schema.TranscriptLine{At: begun, Call: m.calls, Request: request}); err != nil {
		return err
	}
	if err := m.lines.Encode(&schema.TranscriptLine{At: begun, Call: m.calls, Gen: genImported, MS: ms, Reply: reply}); err != nil {
		return err
	}
	m.Committed = append(m.Committed, schema.Committed{Call: m.calls, Gen: genImported, Tag: c.tag})
	c.base, c.fresh = m.calls, nil
	return m.add(c, json.RawMessage(message))
}

func importMetrics(of rawjson.Loose, r *schema.Reply) {
	r.Usage = schema.Usage{PromptTokens: of.Count("prompt_tokens"), CompletionTokens: of.Count("completion_tokens"), CachedTokens: of.Count("cached_tokens")}
	if cost := of.Number("cost_usd"); cost != nil && *cost >= 0 {
		r.Usage.CostUSD = cost
	}
	if r.PromptIDs.UnmarshalJSON(of["prompt_token_ids"]) != nil {
		r.PromptIDs = nil
	}
	if r.CompletionIDs.UnmarshalJSON(of["completion_token_ids"]) != nil {
		r.CompletionIDs = nil
	}
	probs := of["logprobs"]
	if p := of.Object("extra")["logprobs"]; p != nil { // with infinity, which ATIF has no number for
		probs = p
	}
	if r.Logprobs.UnmarshalJSON(probs) != nil || slices.ContainsFunc(r.Logprobs.Unpack(), func(v float32) bool { return math.IsNaN(float64(v)) }) {
		r.Logprobs = nil
	}
}
