package schema

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of single fields, far above honest use. A larger value is refused with
// the field's name before anything else happens.
const (
	maxText        = 64 << 10
	maxInstruction = 1 << 20
	maxCommand     = 64 << 10
	maxName        = 256
	maxList        = 256
	maxLabels      = 64
	maxSteps       = 64
	maxDurationMS  = 30 * 24 * 3600 * 1000 // 30 days
	maxBytes       = 1 << 50
	maxMessages    = 100_000
)

func checkText(field, s string, limit int) error {
	if len(s) > limit {
		return invalid(field, fmt.Sprintf("%d bytes", len(s)), fmt.Sprintf("at most %d bytes", limit))
	}
	if strings.IndexByte(s, 0) >= 0 {
		return invalid(field, s, "must not hold a NUL byte")
	}
	if !utf8.ValidString(s) {
		return invalid(field, strings.ToValidUTF8(s, "?"), "must be UTF-8")
	}
	return nil
}

func checkName(field, s string) error {
	if s == "" {
		return invalid(field, s, "must not be empty")
	}
	return checkText(field, s, maxName)
}

func checkRange[T int | int64 | float64](field string, v, low, high T) error {
	if !(v >= low && v <= high) { // not a number is neither
		return invalid(field, v, fmt.Sprintf("want %v to %v", low, high))
	}
	return nil
}

func checkCount(field string, n, limit int) error {
	if n > limit {
		return invalid(field, fmt.Sprintf("%d entries", n), fmt.Sprintf("at most %d", limit))
	}
	return nil
}

func checkTextList(field string, list []string, limit int) error {
	if err := checkCount(field, len(list), maxList); err != nil {
		return err
	}
	for i, s := range list {
		if err := checkText(fmt.Sprintf("%s[%d]", field, i), s, limit); err != nil {
			return err
		}
	}
	return nil
}

func checkOneOf(field, s string, allowed ...string) error {
	for _, a := range allowed {
		if s == a {
			return nil
		}
	}
	return invalid(field, s, "want one of "+strings.Join(allowed, ", "))
}

// Clip shortens s to at most limit bytes at a rune boundary, and replaces
// bytes that are not UTF-8 or are NUL, so that it can travel as text.
func Clip(s string, limit int) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "�"), "�")
	if len(s) <= limit {
		return s
	}
	const mark = "…"
	cut := max(limit-len(mark), 0)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}
