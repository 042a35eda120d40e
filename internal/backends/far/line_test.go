package far

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/kernel"
)

// TestMarked: the mark is found wherever a login shell leaves the line, and no byte behind
// the answer is read.
func TestMarked(t *testing.T) {
	for name, tt := range map[string]struct{ says, want, fails string }{
		"nothing before":          {Mark + "ready\nrest", "ready", ""},
		"lines before":            {"Welcome.\nYou have mail.\n" + Mark + "ready\nrest", "ready", ""},
		"no line end":             {"Welcome. " + Mark + "ready\nrest", "ready", ""},
		"a title and a colour":    {"\x1b]0;build1\a\x1b[1;32m" + Mark + "ready\nrest", "ready", ""},
		"a beginning of the mark": {"turngate-far" + Mark + "ready\nrest", "ready", ""},
		"the mark in the answer":  {Mark + "says " + Mark + "\nrest", "says " + Mark, ""},
		"another first line":      {"turngate-fax \n" + Mark + "ready\nrest", "ready", ""},
		"too much in lines":       {strings.Repeat("noise\n", maxNoise/6+1), "", "its login shell writes more than 65536 bytes"},
		"too much in one line":    {strings.Repeat("x", maxNoise+1), "", "its login shell writes more than 65536 bytes"},
		"too long an answer":      {Mark + strings.Repeat("x", maxAnswer+1), "", "longer than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			one, other, err := kernel.Pair()
			harness.Must(t, err)
			conn, err := net.FileConn(one)
			harness.Must(t, err)
			defer conn.Close()
			_ = one.Close()
			go func() {
				defer other.Close()
				_, _ = io.WriteString(other, tt.says)
			}()
			l := &Line{Host: NewHost("ssh", "the host build1"), Conn: conn.(*net.UnixConn), Broken: func(context.Context) error { return io.ErrUnexpectedEOF }}
			got, err := l.Marked(t.Context())
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("got %.40q, %v", got, err)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Fatalf("got %q, %v", got, err)
			}
			if rest, err := io.ReadAll(conn); err != nil || string(rest) != "rest" {
				t.Errorf("behind it: %q, %v", rest, err)
			}
		})
	}
}
