package plain_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/turngate/turngate/internal/plain"
)

// hostile has one of each character on which a terminal acts.
const hostile = "a\x1b]52;c;cHduZWQ=\a\x1b[2J\x1b[1A\rforged\x7f\u0080\u009b31m\u0085\u061c\u200e\u200f\u202a\u202e\u2066\u2069\u2028\u2029\b\v\f\x00\xff\x9bz"

func acts(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == 0x2028 || r == 0x2029)
	}) >= 0
}

func TestTextAndLine(t *testing.T) {
	if got := plain.Text(hostile); acts(got) || !strings.HasPrefix(got, "a\ufffd]52;c;") || !strings.HasSuffix(got, "z") {
		t.Errorf("got %q", got)
	}
	if got := plain.Text("a\r\n\tb  c\n"); got != "a\n\tb  c\n" {
		t.Errorf("got %q", got)
	}
	if got := plain.Line(hostile+"\n\tb", 1000); acts(got) || strings.ContainsAny(got, "\n\t") {
		t.Errorf("got %q", got)
	}
}

// TestWriterOfPieces: no division of the text into writes lets a character through.
func TestWriterOfPieces(t *testing.T) {
	text := hostile + "é€𝄞\n"
	for size := 1; size <= len(text); size++ {
		var out bytes.Buffer
		w := plain.NewWriter(&out)
		for rest := []byte(text); len(rest) > 0; {
			n := min(size, len(rest))
			if wrote, err := w.Write(rest[:n]); err != nil || wrote != n {
				t.Fatalf("wrote %d, %v", wrote, err)
			}
			rest = rest[n:]
		}
		if got := out.String(); got != plain.Text(text) {
			t.Fatalf("in pieces of %d: %q", size, got)
		}
	}
}

func TestJSONKeepsItsValues(t *testing.T) {
	var out bytes.Buffer
	value := map[string]string{"a": strings.ToValidUTF8(hostile, "")}
	e := json.NewEncoder(plain.JSON(plain.NewWriter(&out)))
	e.SetIndent("", "\t")
	if err := e.Encode(value); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["a"] != value["a"] || acts(out.String()) {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb\tc \r\n d": "a b c d", "\x1b[31mred": "[31mred", "ab\u202ecd": "ab cd", strings.Repeat("é", 12): strings.Repeat("é", 9) + "…", "\xff": "?",
	} {
		if got := plain.Line(in, 10); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestWord(t *testing.T) {
	for _, text := range []string{"", "a b", "it's", "''", "$(id) `id` \\ \" \n *", "~/a", "a/é;b", "runs/1-a_b.c:d@e%f+g,h=i"} {
		for _, word := range []string{plain.Word(text), plain.Arg(text)} {
			out, err := exec.Command("/bin/sh", "-c", "printf %s "+word).Output()
			if err != nil || string(out) != text {
				t.Errorf("%q: got %q, %v", text, out, err)
			}
		}
	}
	if got := plain.Arg("/tmp/runs-1/a_b.nk"); got != "/tmp/runs-1/a_b.nk" {
		t.Errorf("a plain path became %s", got)
	}
}
