package schema_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// TestNormalForm lists messages with equal and with different normal forms.
func TestNormalForm(t *testing.T) {
	for _, tt := range []struct {
		a, b  string
		equal bool
	}{
		{`{"role":"user","content":"a"}`, `{ "content" : "\u0061", "role":"user" }`, true},
		{`{"content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}`, `{"content":"a"}`, true},
		{`{"content":[{"text":"a","type":"text"}]}`, `{"content":"a","cache_control":null}`, true},
		{`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}`, `{"content":"ab"}`, false},
		{`{"content":[{"type":"text","text":"a","x":1}]}`, `{"content":"a"}`, false},
		{`{"content":[{"type":"image","text":"a"}]}`, `{"content":"a"}`, false},
		{`{"content":[]}`, `{"content":""}`, false},
		{`{"n":1.0}`, `{"n":1}`, true},
		{`{"n":1}`, `{"n":"1"}`, false},
		{`{"tool_calls":[{"function":{"arguments":"{\"cache_control\":1}"}}]}`, `{"tool_calls":[{"function":{"arguments":"{}"}}]}`, false},
	} {
		if got := hash(raw(tt.a)) == hash(raw(tt.b)); got != tt.equal {
			t.Errorf("%s and %s: equal is %v", tt.a, tt.b, got)
		}
	}
	if new(schema.Hasher).Tools(nil) != new(schema.Hasher).Tools(raw(`[]`)) {
		t.Error("no tools are not the same as none")
	}
}

// TestDigestVectors checks the digests in testdata, which clients in other
// languages must also compute.
func TestDigestVectors(t *testing.T) {
	type vector struct {
		Messages []json.RawMessage          `json:"messages"`
		Tools    json.RawMessage            `json:"tools,omitempty"`
		Params   map[string]json.RawMessage `json:"params,omitempty"`
		Digest   string                     `json:"digest"`
	}
	path := filepath.Join("testdata", "digests.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatal(err, "no vectors")
	}
	for i := range all {
		v := &all[i]
		c := schema.Call{Messages: v.Messages, Tools: v.Tools, Params: v.Params}
		got := hex.EncodeToString(harness.HashesOf(&c).Digest())
		if got != v.Digest && !*update {
			t.Errorf("vector %d: %s, want %s", i, got, v.Digest)
		}
		v.Digest = got
	}
	if *update {
		out, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(out, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeltasRebuild edits histories at random and checks that a call rebuilt
// from its delta equals the original.
func TestDeltasRebuild(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	tools := []json.RawMessage{nil, raw(`[{"a":1}]`), raw(`[{"a":2}]`)}
	params := []schema.SortedMap[json.RawMessage]{nil, {"a": raw(`1`)}, {"a": raw(`2`)}}
	for range 2000 {
		base := schema.Call{Messages: make([]json.RawMessage, 1+r.IntN(8)), Tools: tools[r.IntN(3)], Params: params[r.IntN(3)]}
		for i := range base.Messages {
			base.Messages[i] = raw(`{"n":` + string(rune('0'+r.IntN(3))) + `}`)
		}
		keep := r.IntN(len(base.Messages) + 1)
		c := schema.Call{Messages: append([]json.RawMessage(nil), base.Messages[:keep]...), Tools: tools[r.IntN(3)], Params: params[r.IntN(3)]}
		for range r.IntN(4) {
			c.Messages = append(c.Messages, raw(`{"new":`+string(rune('0'+r.IntN(9)))+`}`))
		}
		if len(c.Messages) == 0 {
			continue
		}
		h := harness.HashesOf(&c)
		c.Digest = h.Digest()
		c.Shares = schema.Shares{Base: 1, Keep: keep, Tools: h.Tools == harness.HashesOf(&base).Tools, Params: h.Params == harness.HashesOf(&base).Params}
		d := travelled(t, c.Delta())
		if !d.Rebuild(&base) || string(harness.HashesOf(&d).Digest()) != string(c.Digest) {
			t.Fatalf("base %s %s, call %s %s, rebuilt %s %s", base.Messages, base.Tools, c.Messages, c.Tools, d.Messages, d.Tools)
		}
	}
}

// travelled encodes and decodes a call.
func travelled(t *testing.T, c schema.Call) schema.Call {
	t.Helper()
	c.V, c.Key, c.Tag, c.Dialect = schema.Version, "alpha-1/1/2", schema.TagAgent, "chat"
	data, err := schema.Encode(&c)
	if err != nil {
		t.Fatal(err)
	}
	var d schema.Call
	if err := schema.Decode(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func FuzzHashMessage(f *testing.F) {
	f.Add([]byte(`{"content":[{"type":"text","text":"a","cache_control":{}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Objects with repeated names have no canonical form; decoders refuse them.
		canonical := jsontext.Value(data).Clone()
		if canonical.Canonicalize() == nil && hash(data) != hash(append(append([]byte(" "), data...), ' ')) {
			t.Errorf("white space changes the hash of %q", data)
		}
	})
}

func hash(message []byte) schema.Hash { return new(schema.Hasher).Message(message) }

// TestDigestsGoOn checks that hashes keep their digest when one or two others
// are based on them, and that the digests of those others are right.
func TestDigestsGoOn(t *testing.T) {
	whole := func(conversation string) *schema.Hashes {
		c := schema.Call{}
		for _, letter := range conversation {
			c.Messages = append(c.Messages, raw(fmt.Sprintf(`{"content":"%c"}`, letter)))
		}
		return harness.HashesOf(&c)
	}
	known := map[string]*schema.Hashes{"abcd": whole("abcd")}
	same := func() {
		t.Helper()
		for conversation, h := range known {
			if string(h.Digest()) != string(whole(conversation).Digest()) {
				t.Errorf("%s: the digest is that of something else", conversation)
			}
		}
	}
	same()
	for _, step := range []struct {
		base, conversation string
		keep               int
	}{
		{"abcd", "abcdef", 4}, {"abcd", "abcdxyz", 4}, {"abcd", "abcz", 3},
		{"abcdef", "abcdefg", 6}, {"abcdef", "abcdefh", 6}, {"abcdef", "abcdefij", 6}, {"abcdefg", "abcdefgk", 7},
	} {
		all, on := whole(step.conversation), known[step.base].Based(step.keep)
		on.Messages, on.Tools, on.Params = append(on.Messages, all.Messages[step.keep:]...), all.Tools, all.Params
		known[step.conversation] = on
		same()
	}
}

// TestNeedFullVectors checks the digests of the calls in testdata that a trainer
// puts together, or asks for whole. Each is the digest of the call that was meant.
func TestNeedFullVectors(t *testing.T) {
	type parts struct {
		Messages []json.RawMessage `json:"messages"`
		Tools    json.RawMessage   `json:"tools,omitempty"`
		Params   json.RawMessage   `json:"params,omitempty"` // {} is not the same as none
	}
	type call struct {
		Attempt int `json:"attempt"`
		Number  int `json:"number"`
		Base    int `json:"base,omitempty"`
		Keep    int `json:"keep,omitempty"`
		parts
		Digest string `json:"digest,omitempty"`
		Answer string `json:"answer"`
		Meant  parts  `json:"meant"`
	}
	var all []struct {
		Name  string `json:"name"`
		Calls []call `json:"calls"`
	}
	path := filepath.Join("testdata", "need_full.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatal(err, "no vectors")
	}
	for i := range all {
		for j := range all[i].Calls {
			c := &all[i].Calls[j]
			meant := schema.Call{Messages: c.Meant.Messages, Tools: c.Meant.Tools}
			if len(c.Meant.Params) > 0 {
				if err := json.Unmarshal(c.Meant.Params, &meant.Params); err != nil {
					t.Fatal(err)
				}
			}
			got := hex.EncodeToString(harness.HashesOf(&meant).Digest())
			if c.Digest != "" && c.Digest != got && !*update {
				t.Errorf("%s: call %d has the digest %s, want %s", all[i].Name, c.Number, c.Digest, got)
			}
			if c.Digest != "" {
				c.Digest = got
			}
		}
	}
	if *update {
		out, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(out, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
