package trajectory

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// conversations holds the messages of all calls as a tree, so that calls with a
// common beginning share its memory.
type conversations struct {
	nodes  []turn // nodes[0] is the empty conversation
	index  map[place]int32
	hasher schema.Hasher
}

// place is a conversation and the next message after it.
type place struct {
	after int32
	hash  schema.Hash
}

// turn is the last message of a conversation.
type turn struct {
	up, jump  int32 // the conversation without this message, and a shorter one; see back
	count     int32 // messages
	assistant bool
	text      assistantText // of an assistant's message
	calls     []int32       // the calls with exactly this conversation, by their place in Rollout.Calls
}

// assistantText identifies the text of an assistant's message and the names of the tools
// that it calls. Agents send an answer of the model back in another form.
type assistantText [sha256.Size]byte

// said is the part of an answer by which calls are compared.
type said struct {
	text  assistantText
	whole assistantText // with its reasoning and the arguments of the tools
	tools bool          // it calls tools
}

func newConversations() *conversations {
	return &conversations{nodes: make([]turn, 1), index: map[place]int32{}}
}

// add returns the conversation after with one more message.
func (t *conversations) add(after int32, raw json.RawMessage) int32 {
	at := place{after, t.hasher.Message(raw)}
	if n, ok := t.index[at]; ok {
		return n
	}
	up := &t.nodes[after]
	n := turn{up: after, jump: after, count: up.count + 1}
	// Two jumps of the same length become one, as in a skew binary number. A way
	// back then takes a number of steps that is the logarithm of its length.
	if j := &t.nodes[up.jump]; up.count-j.count == j.count-t.nodes[j.jump].count {
		n.jump = j.jump
	}
	if roleOf(raw) == "assistant" {
		n.assistant, n.text = true, saidOf(raw).text
	}
	id := int32(len(t.nodes))
	t.nodes = append(t.nodes, n)
	t.index[at] = id
	return id
}

// back returns the first count messages of a conversation.
func (t *conversations) back(id int32, count int) int32 {
	for int(t.nodes[id].count) > count {
		n := &t.nodes[id]
		if int(t.nodes[n.jump].count) >= count {
			id = n.jump
		} else {
			id = n.up
		}
	}
	return id
}

// shared returns the number of messages with which both conversations begin.
func (t *conversations) shared(a, b int32) int {
	if n := int(min(t.nodes[a].count, t.nodes[b].count)); n < int(t.nodes[a].count) {
		a = t.back(a, n)
	} else {
		b = t.back(b, n)
	}
	for a != b {
		x, y := &t.nodes[a], &t.nodes[b] // of the same count, so their jumps have the same length
		if x.jump != y.jump {
			a, b = x.jump, y.jump
		} else {
			a, b = x.up, y.up
		}
	}
	return int(t.nodes[a].count)
}

func roleOf(raw json.RawMessage) (role string) {
	_ = rawjson.EachMember(raw, func(name string, v jsontext.Value) error { // a message of another form has no role
		if name == "role" {
			role = text(json.RawMessage(v))
		}
		return nil
	})
	return role
}

// partsText returns the text of a message's content. Images and audio have none. JSON
// of another form is the text itself.
func partsText(content json.RawMessage) string {
	var parts []map[string]json.RawMessage
	if len(content) == 0 || content[0] != '[' || json.Unmarshal(content, &parts) != nil || slices.ContainsFunc(parts, func(p map[string]json.RawMessage) bool { return p == nil }) {
		return text(content)
	}
	var b strings.Builder
	for _, p := range parts {
		member := func(name string) (s string) {
			_ = json.Unmarshal(p[name], &s) // "" if it is no text
			return s
		}
		switch kind := member("type"); kind {
		case "text", "input_text", "output_text":
			b.WriteString(member("text"))
		case "refusal":
			b.WriteString(member("refusal"))
		case "image_url", "input_audio":
		default:
			b.WriteString("[" + kind + "]")
		}
	}
	return b.String()
}

func saidOf(raw json.RawMessage) said {
	m := readMessage(raw)
	text := strings.TrimSpace(cmp.Or(partsText(m.Content), m.Refusal))
	member := func(raw json.RawMessage) (s string) {
		_ = json.Unmarshal(raw, &s) // "" if it is no text
		return s
	}
	names, whole := []byte(text), []byte(text+"\x00"+cmp.Or(member(m.Reasoning), member(m.Reasoning2)))
	for _, w := range m.ToolCalls {
		name, given := w.Function.Name, w.Function.Arguments
		if name == "" {
			name, given = w.Custom.Name, w.Custom.Input
		}
		names = append(append(names, 0), name...)
		whole = append(append(append(append(whole, 0), name...), 0), member(given)...)
	}
	return said{sha256.Sum256(names), sha256.Sum256(whole), len(m.ToolCalls) > 0}
}
