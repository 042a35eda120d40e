package schema

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzNormalForm compares the fast path to the normal form with the slow one,
// which defines it.
func FuzzNormalForm(f *testing.F) {
	for _, s := range []string{
		`{"role":"tool","tool_call_id":"c1","content":"a\n\"b\"\\ \u0041 \/ é \ud83d\ude00"}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"n","arguments":"{}"}}]}`,
		`{"content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}],"cache_control":1}`,
		`{"content":[{"text":"a","text2":"b","type":"text"}]}`, `{"content":[{"text":{"a":"b"},"type":"text"}]}`,
		`{"content":[ {"text":"a","type":"text"} , {"type":"text","text":"b"} ]}`, `{"content":[[{"text":"a","type":"text"}]]}`,
		`[{"cache_control":1,"name":"a"},{"x":{"cache_control":1}}]`, `{"a":1,"a":2}`, `{"b":1,"a":2,"b":3}`, `{"cache_control":1,"cache_control":2}`,
		`{"n":-0,"m":01}`, `{"n":1e2,"m":123456789012345678,"o":-5,"p":0.10}`, `{"é":1,"z":2}`, `{"\u0061":1}`, `{"a":"\ud800"}`, "{\"a\":\"\x01\"}", "{\"a\":\"\xff\"}",
		` [ ] `, `{ }`, `"a`, `{"a":tru}`, `{"a":1,}`, `[1 2]`, `nullx`, `-`, ``, `{"a":"\q"}`, `{"a":1}{`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tools := eachOf(jsontext.Value(data), func(tool jsontext.Value) jsontext.Value { return without(tool, nil) })
		for r, long := range map[rules]jsontext.Value{asIs: data, inMessage: normalMessage(data), inTools: tools} {
			got, ok := appendNormal(nil, data, r)
			if !ok {
				continue
			}
			want := long.Clone()
			if err := want.Canonicalize(); err != nil {
				t.Errorf("%q has no normal form, and %q was given: %v", data, got, err)
			} else if !bytes.Equal(got, want) {
				t.Errorf("%q (%d): %s, want %s", data, r, got, want)
			}
		}
	})
}

// TestPlainFormIsTheUsual checks that messages of agents take the fast path.
func TestPlainFormIsTheUsual(t *testing.T) {
	for _, s := range []string{
		`{"role":"user","content":"a\n\"b\"\\ é"}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"n","arguments":"{\"a\":1}"}}]}`,
		`{"content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}`,
		`{"temperature":0.7,"max_tokens":32000,"stop":["a"]}`,
	} {
		if _, ok := appendNormal(nil, []byte(s), inMessage); !ok {
			t.Errorf("%s goes the long way", s)
		}
	}
}
