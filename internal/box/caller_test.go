package box

import (
	"errors"
	"io"
	"net"
	"testing"

	"github.com/turngate/turngate/sandboxes"
)

// TestABoxThatSendsWithoutEnd: a worker reads no more than the limit of the operation from a
// box that does not keep it.
func TestABoxThatSendsWithoutEnd(t *testing.T) {
	for name, read := range map[string]func(f sandboxes.Files) (int64, error){
		"read": func(f sandboxes.Files) (int64, error) {
			return 1 << 20, f.Read(t.Context(), "/x", io.Discard, 1<<20)
		},
		"pack": func(f sandboxes.Files) (int64, error) {
			return 1 << 20, f.TarOut(t.Context(), "/x", io.Discard, sandboxes.TarOptions{Limit: 1 << 20})
		},
		"list": func(f sandboxes.Files) (int64, error) {
			_, err := f.List(t.Context(), "/x")
			return maxList, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			c := Over(func() (net.Conn, error) {
				ours, theirs := pair(t)
				go func() {
					defer close(over)
					defer theirs.Close()
					out := &frameWriter{w: theirs}
					for piece := make([]byte, 32<<10); out.write(frameData, piece) == nil; {
					}
				}()
				return ours, nil
			}, "")
			limit, err := read(c.Files())
			var large *sandboxes.TooLargeError
			if !errors.As(err, &large) || large.Limit != limit {
				t.Errorf("got %v", err)
			}
			<-over
		})
	}
}
