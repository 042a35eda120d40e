package gatetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/schema"
)

// FuzzEncode checks that every answer, and every event of a stream, is JSON.
func FuzzEncode(f *testing.F, fix Fixture) {
	f.Add([]byte(`{"role":"assistant","content":"hi","reasoning_content":"so","tool_calls":[{"id":"1","type":"function","function":{"name":"a","arguments":"{\n}"}}]}`), "stop")
	f.Add([]byte(`{"content":[{"type":"text","text":"a"}],"tool_calls":[{"index":3,"id":"1","type":"custom","custom":{"name":"a","input":"b\nc"}}]}`), "tool_calls")
	f.Add([]byte("{\"content\":\n null}"), "x\n\n\"")
	f.Add([]byte(`{"content":"\ud83d","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"a\": \"\\ud83d"}},{"id":"b","type":"custom","custom":{"name":"f","input":"x"}}]}`), "stop")
	f.Fuzz(func(t *testing.T, message []byte, finish string) {
		for _, stream := range []bool{false, true} {
			body := fix.Body("hi", stream)
			req, err := Decode(fix.Dialect, fix.Path(body), body)
			if err != nil {
				t.Fatal(err)
			}
			r := &schema.Reply{Message: message, FinishReason: finish}
			out, err := req.Encoding.Encode(dialect.Meta{}, r)
			if err == nil && !json.Valid(out) {
				t.Fatalf("%q is not JSON", out)
			}
			// An answer that passes the check must be encodable.
			if mended, _, wrong := schema.MendAnswer(message); wrong == nil {
				checked := &schema.Reply{Message: mended, FinishReason: finish}
				if _, err := req.Encoding.Encode(dialect.Meta{}, checked); err != nil {
					t.Fatalf("%q: %v", mended, err)
				}
				if _, err := req.Encoding.Stream(dialect.Meta{}).Final(checked); err != nil {
					t.Fatalf("%q, streamed: %v", mended, err)
				}
			}
			for _, delta := range []bool{false, true} {
				s := req.Encoding.Stream(dialect.Meta{})
				var all []byte
				if delta {
					out, err := s.Delta(&schema.Delta{Delta: message})
					if err != nil {
						continue
					}
					all = append(all, out...)
				}
				out, err := s.Final(r)
				if err != nil {
					continue
				}
				if all = append(all, out...); s.ContentType() != "text/event-stream" { // an array, or a value in each line
					for values := json.NewDecoder(bytes.NewReader(all)); ; {
						var v json.RawMessage
						if err := values.Decode(&v); errors.Is(err, io.EOF) {
							break
						} else if err != nil {
							t.Fatalf("%q is not JSON: %v", all, err)
						}
					}
					continue
				}
				for _, e := range Events(string(all)) {
					if e.Data != "[DONE]" && !json.Valid([]byte(e.Data)) {
						t.Fatalf("event %q", e)
					}
				}
			}
		}
	})
}
