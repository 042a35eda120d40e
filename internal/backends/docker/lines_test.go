package docker

import (
	"slices"
	"strings"
	"testing"
)

func TestLinesAreCut(t *testing.T) {
	var said []string
	l := &lines{say: func(s string) { said = append(said, s) }}
	for _, part := range []string{"a", "b\r\nc\n", strings.Repeat("x", maxLine/2), strings.Repeat("x", maxLine), "y\nend"} {
		l.add(part)
	}
	l.end()
	want := []string{"ab", "c", strings.Repeat("x", maxLine), strings.Repeat("x", maxLine/2) + "y", "end"}
	if !slices.Equal(said, want) {
		t.Errorf("got %d lines: %.40q", len(said), said)
	}
}
