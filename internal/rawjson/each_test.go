package rawjson

import (
	"slices"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzEach compares the fast path through objects and arrays with the
// library's.
func FuzzEach(f *testing.F) {
	for _, s := range []string{
		`{"a":1,"b":[{"c":"d"}],"e":{}}`, ` { "a" : null } `, `{}`, `[]`, ` [ 1 , "a" , {} ] `, `{"a":1,"a":2}`, `{"a":1,}`, `[1,]`, `{"a":1}x`, `[1]x`, `{"\u0061":1}`,
		`{"é":1}`, `{"a":"\ud800"}`, `{"a":1 "b":2}`, `[1 2]`, `{`, `[`, ``, `null`, `"a"`, `{"a":01}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		type found struct {
			all []string
			err bool
		}
		members := func(each func([]byte, func(string, jsontext.Value) error) error) (out found) {
			out.err = each(data, func(name string, v jsontext.Value) error {
				out.all = append(out.all, name, string(v))
				return nil
			}) != nil
			return out
		}
		elements := func(each func(jsontext.Value, func(jsontext.Value) error) error) (out found) {
			out.err = each(data, func(v jsontext.Value) error {
				out.all = append(out.all, string(v))
				return nil
			}) != nil
			return out
		}
		check := func(got, want found) {
			if got.err != want.err || !got.err && !slices.Equal(got.all, want.all) {
				t.Errorf("%q: got %q, error %v; want %q, error %v", data, got.all, got.err, want.all, want.err)
			}
		}
		check(members(EachMember), members(eachMember))
		if jsontext.Value(data).Kind() != 'n' { // an empty list
			check(elements(EachElement), elements(eachElement))
		}
	})
}
