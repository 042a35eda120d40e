package console_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
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

// Browsers beyond the bounds of feeds and of watched rollouts are told so, and get in when
// others leave. Browsers of one rollout share its messages.
func TestFeedsAreBounded(t *testing.T) {
	h := &counted{}
	s := &site{}
	s.start(t, h, console.DefaultListen)
	c := s.browser(t)
	live := func(n int) string { return fmt.Sprintf("/api/rollouts/alpha-%04d/live", n) }
	var stops []func()
	open := func(path, first string) (stop func()) {
		t.Helper()
		events, stop := s.feed(t, c, path, "")
		stops = append(stops, stop)
		if e := <-events; e.name != "trouble" || !strings.Contains(e.data, first) {
			t.Fatalf("%s: got %+v", path, e)
		}
		return stop
	}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for i := range 64 {
		open(live(i), "")
	}
	open(live(0), "")
	harness.Eventually(t, "64 rollouts that are heard", 5*time.Minute, func() bool { return h.heard.Load() == 64 })
	open(live(64), "64 rollouts are watched at once")
	for range 256 - 65 {
		open(live(7), "")
	}
	open(live(7), "256 open feeds")
	open("/api/rollouts", "256 open feeds")
	if n := h.heard.Load(); n != 64 {
		t.Errorf("%d rollouts are heard", n)
	}
	stops[0]()
	harness.Eventually(t, "room for a feed", 5*time.Minute, func() bool {
		events, stop := s.feed(t, c, "/api/rollouts", "")
		defer stop()
		return (<-events).name == "begin"
	})
}

// counted is a source of running rollouts.
type counted struct {
	memory
	heard atomic.Int32
}

func (*counted) Unheard() string { return "" }

func (*counted) Rollout(_ context.Context, id schema.ID) (*recorded.Rollout, error) {
	return &recorded.Rollout{ID: id, State: &schema.State{ID: id, Trainer: "alpha", Status: schema.StatusRunning, Attempt: 1}}, nil
}

func (h *counted) Listen(ctx context.Context, _ schema.ID, _ recorded.Listener) error {
	h.heard.Add(1)
	<-ctx.Done()
	return nil
}
