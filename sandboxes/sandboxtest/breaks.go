package sandboxtest

import (
	"bufio"
	"fmt"
	"os"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// GoesOn checks that a command goes on while each function breaks the way to its sandbox: no
// byte is lost, in no direction, and nothing runs twice.
func GoesOn(t *testing.T, sb sandboxes.Sandbox, breaks ...func()) {
	t.Helper()
	const each = 5000 // lines before a break
	lines := each * len(breaks)
	c := sandboxes.Cmd{Args: []string{"sh", "-c", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do i=$((i+1)); echo "line $i"; [ $((i%%%d)) -gt 0 ] || read go; done; echo once >>/tmp/runs; cat /tmp/runs`, lines, each)}}
	out, in, err := os.Pipe()
	harness.Must(t, err)
	defer out.Close()
	stdin, goes, err := os.Pipe()
	harness.Must(t, err)
	defer stdin.Close()
	c.Stdout, c.Stdin = in, stdin
	p, err := sb.Start(t.Context(), c)
	harness.Must(t, err)
	var exit schema.Exit
	var lost error
	over := make(chan struct{})
	go func() {
		defer close(over)
		exit, lost = p.Wait()
		in.Close() // it ends the wait for a line
	}()
	got := bufio.NewScanner(out)
	for i := 1; i <= lines; i++ {
		if !got.Scan() || got.Text() != fmt.Sprintf("line %d", i) {
			goes.Close()
			<-over
			t.Fatalf("in place of line %d: %q, %v; the end of the command: %+v, %v", i, got.Text(), got.Err(), exit, lost)
		}
		if i%each > 0 {
			continue
		}
		breaks[i/each-1]()
		_, err := fmt.Fprintln(goes, "go")
		harness.Must(t, err)
	}
	if !got.Scan() || got.Text() != "once" {
		t.Errorf("the command has run: %q, %v", got.Text(), got.Err())
	}
	goes.Close()
	if <-over; lost != nil || !exit.OK() {
		t.Errorf("its end %+v, %v", exit, lost)
	}
}
