package trajectory

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// message is the part of a chat message in OpenAI's form that a trajectory shows.
type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Refusal    string          `json:"refusal"`
	Reasoning  json.RawMessage `json:"reasoning_content"`
	Reasoning2 json.RawMessage `json:"reasoning"` // the name of the field in some engines
	ToolCalls  []toolCall      `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

// toolCall is a tool call. Its arguments are JSON in a string, or free text.
type toolCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
	Custom struct {
		Name  string          `json:"name"`
		Input json.RawMessage `json:"input"`
	} `json:"custom"`
}

// readMessage reads a message. JSON of another form becomes the text of a message.
func readMessage(raw json.RawMessage) message {
	var m message
	if err := json.Unmarshal(raw, &m); err != nil || m.Role == "" && m.Content == nil && m.ToolCalls == nil {
		return message{Role: sourceUser, Content: mustText(string(raw))}
	}
	return m
}

func mustText(s string) json.RawMessage {
	data, _ := json.Marshal(s) // a string always encodes
	return data
}

// text returns the value of a JSON string, "" for null, and the JSON itself for
// any other value.
func text(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func (m *message) reasoning() string {
	if r := text(m.Reasoning); r != "" {
		return r
	}
	return text(m.Reasoning2)
}

func (m *message) content() Content {
	c := content(m.Content)
	if c.Parts == nil && c.Text == "" {
		c.Text = m.Refusal
	}
	return c
}

// content reads a string, null, or a list of parts.
func content(raw json.RawMessage) Content {
	var list []struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Refusal  string `json:"refusal"`
		ImageURL struct {
			URL string `json:"url"`
		} `json:"image_url"`
		Audio struct {
			Data   string `json:"data"`
			Format string `json:"format"`
		} `json:"input_audio"`
	}
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
		return Content{Text: text(raw)}
	}
	parts := make([]Part, 0, len(list))
	for _, p := range list {
		switch p.Type {
		case "text", "input_text", "output_text":
			parts = append(parts, textPart(p.Text))
		case "refusal":
			parts = append(parts, textPart(p.Refusal))
		case "image_url":
			parts = append(parts, image(p.ImageURL.URL))
		case "input_audio":
			parts = append(parts, audio(p.Audio.Format, p.Audio.Data))
		default:
			parts = append(parts, textPart(fmt.Sprintf("[%s]", p.Type)))
		}
	}
	if len(parts) == 0 {
		return Content{}
	}
	if len(parts) == 1 && parts[0].Text != nil {
		return Content{Text: *parts[0].Text}
	}
	return Content{Parts: parts}
}

func textPart(s string) Part { return Part{Type: "text", Text: &s} }

// image returns an image part if the format has the image's type, else a text.
func image(url string) Part {
	kind := ""
	if rest, ok := strings.CutPrefix(url, "data:"); ok {
		kind, _, _ = strings.Cut(rest, ";")
	} else {
		ext := strings.TrimPrefix(strings.ToLower(path.Ext(strings.SplitN(url, "?", 2)[0])), ".")
		if ext == "jpg" {
			ext = "jpeg"
		}
		kind = "image/" + ext
	}
	if !slices.Contains([]string{"image/jpeg", "image/png", "image/gif", "image/webp"}, kind) {
		if strings.HasPrefix(url, "data:") {
			url = fmt.Sprintf("%s, %d bytes", kind, len(url))
		} else if len(url) > 200 {
			url = url[:200] + "…"
		}
		return textPart("[image " + url + "]")
	}
	return Part{Type: "image", Source: &Source{kind, url}}
}

// dataURL is a URL that has data, such as a picture.
var dataURL = regexp.MustCompile(`data:[\w.+-]+/[\w.+-]+(?:;[\w.+-]+=[\w.+-]+)*;base64,[A-Za-z0-9+/_-]{16,}={0,2}`)

// WithoutData returns a text with the type and the size of data in the place of each URL that
// has it.
func WithoutData(text string) string {
	if !strings.Contains(text, ";base64,") {
		return text
	}
	return dataURL.ReplaceAllStringFunc(text, func(url string) string {
		head, data, _ := strings.Cut(url, ",")
		kind, _, _ := strings.Cut(strings.TrimPrefix(head, "data:"), ";")
		return fmt.Sprintf("[%s, %d bytes]", kind, base64.RawStdEncoding.DecodedLen(len(strings.TrimRight(data, "="))))
	})
}

func audio(format, data string) Part {
	kind := map[string]string{"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "ogg": "audio/ogg", "aac": "audio/aac", "m4a": "audio/mp4", "webm": "audio/webm", "aiff": "audio/aiff"}[format]
	if kind == "" {
		return textPart(fmt.Sprintf("[audio of format %q]", format))
	}
	return Part{Type: "audio", Source: &Source{kind, "data:" + kind + ";base64," + data}}
}

// toolCalls returns the tool calls with ids that are unique within the step.
func (m *message) toolCalls(call int) []ToolCall {
	var out []ToolCall
	seen := map[string]bool{}
	for i, w := range m.ToolCalls {
		t := ToolCall{ID: w.ID, Name: w.Function.Name}
		given := text(w.Function.Arguments)
		if w.Custom.Name != "" {
			t.Name, given = w.Custom.Name, text(w.Custom.Input)
		}
		if t.ID == "" || seen[t.ID] {
			t.ID = fmt.Sprintf("call-%d-%d", call, i+1)
			if w.ID != "" {
				t.Extra = map[string]any{"id": w.ID}
			}
		}
		seen[t.ID] = true
		t.Arguments = object(given, &t)
		out = append(out, t)
	}
	return out
}

// object returns arguments as a JSON object, as the format requires.
func object(given string, t *ToolCall) json.RawMessage {
	var o map[string]json.RawMessage
	if json.Unmarshal([]byte(given), &o) == nil && o != nil {
		return json.RawMessage(given)
	}
	if given == "" {
		return json.RawMessage("{}")
	}
	if t.Extra == nil {
		t.Extra = map[string]any{}
	}
	t.Extra["free_text"] = true // the arguments were not an object
	return json.RawMessage(`{"input":` + string(mustText(given)) + `}`)
}

// Message is the readable part of a chat message.
type Message struct {
	Role      string
	Text      string
	Reasoning string
	ToolCall  string // of a tool's message: the call that it answers
	Tools     []MessageTool
}

// MessageTool is a tool call in a message.
type MessageTool struct{ ID, Name, Arguments string }

// ReadMessage reads a chat message. Images and audio are named in its text. JSON
// of another form becomes the text of a user's message.
func ReadMessage(raw json.RawMessage) Message {
	m := readMessage(raw)
	c := m.content()
	out := Message{Role: m.Role, Reasoning: m.reasoning(), ToolCall: m.ToolCallID, Text: c.Text}
	for _, p := range c.Parts {
		if p.Text != nil {
			out.Text += *p.Text
		} else {
			out.Text += "[" + p.Type + "]"
		}
	}
	for _, w := range m.ToolCalls {
		t := MessageTool{w.ID, w.Function.Name, text(w.Function.Arguments)}
		if w.Custom.Name != "" {
			t.Name, t.Arguments = w.Custom.Name, text(w.Custom.Input)
		}
		out.Tools = append(out.Tools, t)
	}
	return out
}
