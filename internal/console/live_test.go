package console_test

import (
	"context"
	"errors"
	"testing"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// heard is a source that cannot be listened to until it begins.
type heard struct {
	memory
	fail  chan error
	begun chan struct{}
}

func (h *heard) Unheard() string { return "" }

func (h *heard) Listen(ctx context.Context, _ schema.ID, to recorded.Listener) error {
	select {
	case err := <-h.fail:
		return err
	case <-h.begun:
		to.Begin("a", 0)
	case <-ctx.Done():
	}
	<-ctx.Done()
	return nil
}

// A browser that comes back learns that a trouble has ended meanwhile.
func TestATroubleThatHasEnded(t *testing.T) {
	h := &heard{memory: memory{one: running(1)}, fail: make(chan error), begun: make(chan struct{})}
	s := &site{}
	s.start(t, h, console.DefaultListen)
	c := s.browser(t)
	const path = "/api/rollouts/alpha-0001/live"
	events, stop := s.feed(t, c, path, "")
	if e := <-events; e.name != "trouble" || e.data != `""` {
		t.Fatalf("got %+v", e)
	}
	h.fail <- errors.New("no server")
	if e := <-events; e.name != "trouble" || e.data != `"no server"` {
		t.Fatalf("got %+v", e)
	}
	stop()
	h.begun <- struct{}{}
	events, stop = s.feed(t, c, path, "a.0")
	defer stop()
	for e := range events {
		if e.name == "trouble" && e.data == `""` {
			return
		}
	}
}
