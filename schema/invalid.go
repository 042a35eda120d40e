package schema

import (
	"fmt"
	"unicode/utf8"
)

// InvalidError says which field of a message is wrong, what it holds and what
// would be right. It is the user's fault, never retryable.
type InvalidError struct {
	Field string // dotted path in the message, such as "limits.agent_ms"
	Value string // the offending value, shortened
	Want  string // what would be right
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
