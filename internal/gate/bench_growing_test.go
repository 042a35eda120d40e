package gate_test

import (
	"fmt"
	"strings"
)

// growing is a conversation that grows turn by turn from three quarters of a
// size to five quarters of it; then another one begins.
type growing struct {
	talk         talk
	size, number int
	body         []byte
	turns        int
}

// talk has the JSON of a conversation in a dialect: its beginning, a tool call,
// its result, and its end.
type talk struct{ name, path, begin, call, result, end string }

// talks lists one for each dialect.
func talks() []talk {
	return []talk{
		chatTalk(),
		{
			name: "responses", path: "/v1/responses",
			begin:  `{"model":"policy","temperature":0.7,"instructions":"do it","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"conversation %d"}]}`,
			call:   `,{"type":"function_call","call_id":"c%d","name":"bash","arguments":"{}"}`,
			result: `,{"type":"function_call_output","call_id":"c%d","output":%q}`, end: `]}`,
		},
		{
			name: "messages", path: "/v1/messages",
			begin:  `{"model":"policy","max_tokens":32000,"system":"do it","messages":[{"role":"user","content":[{"type":"text","text":"conversation %d"}]}`,
			call:   `,{"role":"assistant","content":[{"type":"tool_use","id":"c%d","name":"bash","input":{}}]}`,
			result: `,{"role":"user","content":[{"type":"tool_result","tool_use_id":"c%d","content":%q}]}`, end: `]}`,
		},
		{
			name: "gemini", path: "/v1beta/models/policy:generateContent",
			begin:  `{"generationConfig":{"temperature":0.7},"contents":[{"role":"user","parts":[{"text":"conversation %d"}]}`,
			call:   `,{"role":"model","parts":[{"functionCall":{"id":"c%d","name":"bash","args":{}}}]}`,
			result: `,{"role":"user","parts":[{"functionResponse":{"id":"c%d","name":"bash","response":{"output":%q}}}]}`, end: `]}`,
		},
	}
}

func chatTalk() talk {
	return talk{
		name: "chat", path: "/v1/chat/completions",
		begin:  `{"model":"policy","temperature":0.7,"messages":[{"role":"system","content":"conversation %d"}`,
		call:   `,{"role":"assistant","content":null,"tool_calls":[{"id":"c%d","type":"function","function":{"name":"bash","arguments":"{}"}}]}`,
		result: `,{"role":"tool","tool_call_id":"c%d","content":%q}`, end: `]}`,
	}
}

// growingTurns is the number of turns of a conversation.
const growingTurns = 16

func (g *growing) next() []byte {
	if g.body == nil || g.turns == growingTurns {
		g.number, g.turns = g.number+1, 0
		g.body = fmt.Appendf(nil, g.talk.begin, g.number)
		for len(g.body) < g.size*3/4 {
			g.turn(min(g.size/2, 1024))
		}
	}
	g.turns++
	g.turn(g.size / 2 / growingTurns)
	return append(g.body, g.talk.end...)
}

// turn adds a tool call and its result, of about size bytes together.
func (g *growing) turn(size int) {
	id := len(g.body)
	g.body = fmt.Appendf(g.body, g.talk.call, id)
	g.body = fmt.Appendf(g.body, g.talk.result, id, strings.Repeat("x", max(size-180, 16)))
}
