package rawjson

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzPlainValue checks that each value that Reader accepts is valid for
// the JSON library too.
func FuzzPlainValue(f *testing.F) {
	for _, s := range []string{
		`{"a":[1,-2.5e+3,true,false,null,"x\n\u00e9 é"],"b":{}} rest`, `{"a":1,"a":2}`, `[01]`, `-`, `1.`, `1e`, `0`, `00`, `"\ud800"`, `"\uD83D\uDE00"`, `"\u12"`, `"\q"`,
		"\"\x01\"", "\"\xff\"", `{"a":1,}`, `[1,]`, `[1 2]`, ` [ ] `, `tru`, `truex`, `"a`, `{"\u0061":1}`, `{"é":1}`, `12,`, ``, `"\u00zz"`, `"\ude00"`, `"\/"`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p := Read(data, 0)
		from, ok := p.Value()
		if !ok {
			return
		}
		got := data[from:p.At]
		if want, err := jsontext.NewDecoder(bytes.NewReader(data)).ReadValue(); err == nil && !bytes.Equal(got, want) {
			t.Errorf("%q: read %q, want %q", data, got, want)
		}
		if !jsontext.Value(got).IsValid() { // bytes after the value may be no JSON
			t.Errorf("%q: %q is no JSON", data, got)
		}
	})
}
