package rawjson

import (
	"strings"
	"testing"
)

func TestBound(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for text, ok := range map[string]bool{
		`{"a":[1,-2.5e+3,true,"x\"[[[ 99"]}`:            true,
		`17`:                                            true,
		`9007199254740991`:                              true,
		`1.7976931348623157e308`:                        true,
		strings.Repeat("9", 309-1):                      true,
		`{"a":` + strings.Repeat("9", 401) + `}`:        false,
		`[0.` + strings.Repeat("1", 5000) + `]`:         false,
		`-1e400`:                                        false,
		`1e-400`:                                        true, // it is 0
		nested(128):                                     true,
		nested(129):                                     false,
		strings.Repeat(`{"a":`, 129) + "1":              false,
		strings.Repeat("[],", 500) + "1":                true,
		`"` + strings.Repeat("[", 500) + `"`:            true,
		`"` + strings.Repeat("9", 5000) + `\\",` + "[]": true,
	} {
		if err := Bound([]byte(text), MaxNesting); (err == nil) != ok {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}
