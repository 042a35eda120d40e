// Package plain makes text of rollouts safe for a terminal, and for a shell. An agent, a model or
// a task can write control characters that change a terminal's title, screen or
// clipboard, or that forge lines.
package plain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Replacement replaces a character that Text removes.
const Replacement = utf8.RuneError

// control reports whether a terminal acts on a character: a control character, a
// change of the text's direction, or a line break of Unicode.
func control(r rune) bool {
	return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x61c || r == 0x200e || r == 0x200f ||
		r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0x2028 || r == 0x2029
}

// Text replaces the characters on which a terminal acts, and bytes that are not
// UTF-8. Line breaks and tabs stay.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && control(r) {
			return Replacement
		}
		return r // an invalid byte is read as Replacement
	}, strings.ReplaceAll(s, "\r\n", "\n"))
}

// Line makes text a single line: without line breaks, control characters and
// repeated spaces, and with at most limit characters.
func Line(s string, limit int) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool { return r == ' ' || control(r) }), " ")
	if r := []rune(s); len(r) > limit {
		return string(r[:max(limit-1, 0)]) + "…"
	}
	return s
}

// Writer writes text for a terminal. It replaces characters as Text does.
type Writer struct {
	mu   sync.Mutex
	to   io.Writer
	part []byte // the first bytes of a character, until the others are written
}

// NewWriter returns a writer to a stream. The streams of a command are always such
// writers, also when they are no terminals: a file may be shown on one later.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.part, p...)
	cut := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if c := text[len(text)-back]; utf8.RuneStart(c) {
			if !utf8.FullRune(text[len(text)-back:]) {
				cut = len(text) - back
			}
			break
		}
	}
	w.part = append([]byte(nil), text[cut:]...)
	_, err := io.WriteString(w.to, Text(string(text[:cut])))
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Fd returns the descriptor of the stream, with which its terminal is found.
func (w *Writer) Fd() uintptr {
	if f, ok := w.to.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

// Raw returns the stream below a Writer, for bytes that are no text: binary data,
// and JSON, in which JSON escapes the characters.
func Raw(w io.Writer) io.Writer {
	if own, ok := w.(*Writer); ok {
		return own.to
	}
	return w
}

// Word writes a text as one word of a shell, which does not act on any part of it.
func Word(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Arg writes a text as Word does, without quotes if a shell acts on no part of it anyway.
func Arg(s string) string {
	safe := func(r rune) bool {
		return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("_-./:@%+,=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !safe(r) }) < 0 {
		return s
	}
	return Word(s)
}

// JSON returns a writer of JSON to a stream. It writes the characters on which a
// terminal acts as escapes, so that the values stay the same.
func JSON(w io.Writer) io.Writer { return escaper{Raw(w)} }

type escaper struct{ to io.Writer }

// Write takes whole values, as json.Encoder writes them.
func (e escaper) Write(p []byte) (int, error) {
	if !slices.ContainsFunc(p, func(c byte) bool { return c >= 0x7f || c < ' ' && c != '\n' && c != '\t' }) {
		return e.to.Write(p)
	}
	var b strings.Builder
	for _, r := range string(p) {
		if r != '\n' && r != '\t' && control(r) { // only strings have such characters
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	if _, err := io.WriteString(e.to, b.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}
