package schema

import (
	"fmt"
	"unicode/utf8"
)

// InvalidError names a field of a message with a wrong value, the value and a
// valid form. The sender has to correct it; a retry does not help.
type InvalidError struct {
	Field string // dotted path in the message, such as "limits.agent_ms"
	Value string // the wrong value, shortened
	Want  string // a valid form
}

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %q is not valid: %s", e.Field, e.Value, e.Want)
}

func invalid(field string, value any, want string) error {
	s := fmt.Sprint(value)
	const limit = 80
	if len(s) > limit {
		cut := limit
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return &InvalidError{Field: field, Value: s, Want: want}
}
