package playback

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Bounds of a diff for people.
const (
	maxLines = 40  // of each side
	maxWidth = 300 // bytes of a line
	around   = 2   // equal lines before and after
)

// diff compares two messages. A message that one side does not have is nil.
func diff(then, now json.RawMessage) string {
	a, b := linesOf(then), linesOf(now)
	head := 0
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var out []string
	put := func(sign string, list []string) {
		for i, l := range list {
			if i == maxLines {
				out = append(out, sign+"…")
				return
			}
			out = append(out, sign+schema.Clip(l, maxWidth))
		}
	}
	put("  ", a[max(head-around, 0):head])
	put("- ", a[head:len(a)-tail])
	put("+ ", b[head:len(b)-tail])
	put("  ", a[len(a)-tail:min(len(a)-tail+around, len(a))])
	return strings.Join(out, "\n")
}

// linesOf returns a message as lines: its JSON with the line breaks of its texts.
func linesOf(m json.RawMessage) []string {
	if m == nil {
		return nil
	}
	var out bytes.Buffer
	if json.Indent(&out, m, "", "  ") != nil {
		out.Write(m)
	}
	return strings.Split(strings.NewReplacer(`\n`, "\n", `\"`, `"`, `\t`, "\t").Replace(out.String()), "\n")
}
