package rawjson

import (
	"encoding/json"
	"testing"
)

func TestMend(t *testing.T) {
	for in, want := range map[string]struct {
		out string
		n   int
	}{
		`"plain \u00e9 é"`:           {`"plain \u00e9 é"`, 0},
		`"\ud83d\ude00"`:             {`"\ud83d\ude00"`, 0},
		`"\uD83D\uDE00 \\ud83d"`:     {`"\uD83D\uDE00 \\ud83d"`, 0},
		`"a\ud83d"`:                  {`"a\ufffd"`, 1},
		`"\ude00\ud83d\ud83d\ude00"`: {`"\ufffd\ufffd\ud83d\ude00"`, 2},
		"\"a\xffb\xc3\"":             {"\"a\ufffdb\ufffd\"", 2},
		`"\ud83`:                     {`"\ud83`, 0},
		`\`:                          {`\`, 0},
	} {
		out, n := Mend([]byte(in))
		if string(out) != want.out || n != want.n {
			t.Errorf("%q: %q, %d; want %q, %d", in, out, n, want.out, want.n)
		}
	}
}

// FuzzMend checks that Mend turns JSON with invalid Unicode into valid JSON.
func FuzzMend(f *testing.F) {
	for _, s := range []string{`"\ud83d"`, "\"\xff\"", `{"a":"\\\ude00"}`, `"\ud83d\ud83d\ude00"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, n := Mend(in)
		if n == 0 && string(out) != string(in) {
			t.Fatalf("%q became %q", in, out)
		}
		if _, again := Mend(out); again != 0 {
			t.Fatalf("%q: %d are left in %q", in, again, out)
		}
		// encoding/json takes any Unicode, and repeated names.
		if json.Valid(in) != json.Valid(out) {
			t.Fatalf("%q became %q", in, out)
		}
	})
}
