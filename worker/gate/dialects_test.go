package gate_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
	"github.com/turngate/turngate/worker/gate/gatetest"
)

func always(path string) func(string) string { return func(string) string { return path } }

func fixtures() []gatetest.Fixture {
	return []gatetest.Fixture{chatFixture(), responsesFixture(), messagesFixture(), geminiFixture()}
}

// TestEveryDialectHasAFixture keeps a new one from being forgotten.
func TestEveryDialectHasAFixture(t *testing.T) {
	all := fixtures()
	for i, d := range gate.Dialects() {
		if i >= len(all) || all[i].Dialect.Name() != d.Name() {
			t.Errorf("%s has none", d.Name())
		}
	}
}

// posted is a request as a dialect's decoder gets it.
func posted(path string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, nil)
	if _, call, ok := strings.Cut(r.URL.Path, "/models/"); ok {
		r.SetPathValue("call", call)
	}
	return r
}

// decode reads a body with a decoder of its own.
func decode(t *testing.T, d gate.Dialect, path, body string) (gate.Request, error) {
	t.Helper()
	return decodeWith(d.Decoder(gate.NewMemory(0)), posted(path), []byte(body))
}

// decodeFresh reads a body with a decoder that remembers nothing.
func decodeFresh(d gate.Dialect, body []byte) (gate.Request, error) {
	return decodeWith(d.Decoder(gate.NewMemory(0)), nil, body)
}

// decodeWith has a decoder read a body and take it apart.
func decodeWith(d gate.Decoder, r *http.Request, body []byte) (gate.Request, error) {
	read, err := d.Read(bytes.NewReader(body), len(body))
	if err != nil {
		return gate.Request{}, err
	}
	return d.Decode(r, read)
}

// decodeTwo decodes two bodies in turns: what the decoder remembers of one must
// change nothing about the other, and what it gave away must stay what it was
// when the memory of a body is used for the next.
func decodeTwo(t *testing.T, d gate.Dialect, first, second []byte) {
	t.Helper()
	decoder := d.Decoder(gate.NewMemory(0))
	var calls []schema.Call
	var were []string
	for i, body := range [][]byte{first, second, second, first, second} {
		from := io.Reader(bytes.NewReader(body))
		if i%2 == 1 {
			from = iotest.HalfReader(from)
		}
		read, err := decoder.Read(from, len(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := decoder.Decode(nil, read)
		fresh, freshErr := decodeFresh(d, body)
		if (err == nil) != (freshErr == nil) {
			t.Fatalf("remembering: %v, fresh: %v", err, freshErr)
		}
		if err == nil {
			checkDecoded(t, got.Call, fresh.Call)
			calls, were = append(calls, got.Call), append(were, shown(got.Call))
		}
	}
	gate.Scribble(decoder)
	for i, c := range calls {
		if now := shown(c); now != were[i] {
			t.Fatalf("call %d was %s and is now %s", i, were[i], now)
		}
	}
}

func checkDecoded(t *testing.T, got, fresh schema.Call) {
	t.Helper()
	if !reflect.DeepEqual(got, fresh) {
		t.Fatalf("remembering: %s, fresh: %s", shown(got), shown(fresh))
	}
	for _, m := range append(append([]json.RawMessage(nil), got.Messages...), got.Tools) {
		if m != nil && !json.Valid(m) {
			t.Fatalf("%q is not JSON", m)
		}
	}
	for name, v := range got.Params {
		if !json.Valid(v) {
			t.Fatalf("%s: %q is not JSON", name, v)
		}
	}
}

// shown is a call as a golden file shows it.
func shown(c schema.Call) string {
	b, err := json.MarshalIndent(map[string]any{"model": c.Model, "stream": c.Stream, "messages": c.Messages, "tools": c.Tools, "params": c.Params}, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// fuzzEncode has every answer be JSON, and every event of a stream.
func fuzzEncode(f *testing.F, fix gatetest.Fixture) {
	f.Add([]byte(`{"role":"assistant","content":"hi","reasoning_content":"so","tool_calls":[{"id":"1","type":"function","function":{"name":"a","arguments":"{\n}"}}]}`), "stop")
	f.Add([]byte(`{"content":[{"type":"text","text":"a"}],"tool_calls":[{"index":3,"id":"1","type":"custom","custom":{"name":"a","input":"b\nc"}}]}`), "tool_calls")
	f.Add([]byte("{\"content\":\n null}"), "x\n\n\"")
	f.Fuzz(func(t *testing.T, message []byte, finish string) {
		for _, stream := range []bool{false, true} {
			body := fix.Body("hi", stream)
			req, err := decode(t, fix.Dialect, fix.Path(body), body)
			if err != nil {
				t.Fatal(err)
			}
			r := &schema.Reply{Message: message, FinishReason: finish}
			if out, err := req.Encoding.Encode(gate.Meta{}, r); err == nil && !json.Valid(out) {
				t.Fatalf("%q is not JSON", out)
			}
			for _, delta := range []bool{false, true} {
				s := req.Encoding.Stream(gate.Meta{})
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
				if all = append(all, out...); s.ContentType() == "application/json" {
					if !json.Valid(all) {
						t.Fatalf("%q is not JSON", all)
					}
					continue
				}
				for _, e := range events(string(all)) {
					if e.data != "[DONE]" && !json.Valid([]byte(e.data)) {
						t.Fatalf("event %q", e)
					}
				}
			}
		}
	})
}

type sse struct{ kind, data string }

// events takes an event stream apart.
func events(s string) (all []sse) {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	for _, e := range strings.Split(strings.TrimSuffix(s, "\n\n"), "\n\n") {
		var one sse
		for _, line := range strings.Split(e, "\n") {
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				one.kind = v
			} else if v, ok := strings.CutPrefix(line, "data: "); ok {
				one.data += v
			} else {
				one.data += "\x00not an event: " + line
			}
		}
		all = append(all, one)
	}
	return all
}

func jsonBody(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings always encode
	}
	return string(b)
}

type obj = map[string]any
