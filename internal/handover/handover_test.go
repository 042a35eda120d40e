package handover_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/internal/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func join(t *testing.T, state string) *handover.Process {
	t.Helper()
	p, err := handover.Join(state)
	harness.Must(t, err)
	return p
}

// begin lets a process take the turn and start, and returns the places that it cleaned.
func begin(t *testing.T, p *handover.Process, instance string) (cleaned []int) {
	t.Helper()
	harness.Must(t, p.Begin())
	return started(t, p, instance)
}

func started(t *testing.T, p *handover.Process, instance string) (cleaned []int) {
	t.Helper()
	harness.Must(t, p.Start(instance, 8, func(place int) { cleaned = append(cleaned, place) }))
	return cleaned
}

// end ends a process as it should.
func end(p *handover.Process) {
	p.Ended()
	p.Leave()
}

func count(n int) func() handover.Use {
	return func() handover.Use { return handover.Use{Running: n, Idle: int64(n) << 30} }
}

// handOver lets next follow p, which runs a number of rollouts.
func handOver(t *testing.T, p, next *handover.Process, running int) {
	t.Helper()
	harness.Must(t, p.Listen())
	followed := make(chan error, 1)
	go func() { followed <- next.Follow(t.Context()) }()
	<-p.Asked()
	harness.Must(t, p.Retire(count(running)))
	harness.Must(t, <-followed)
}

// TestOneProcessHasTheTurn: the others wait, and one that follows knows which ones live
// and how many rollouts they run.
func TestOneProcessHasTheTurn(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "state")
	a, b, c := join(t, state), join(t, state), join(t, state)
	if got := begin(t, a, "a"); len(got) != 2 || a.Place() != 0 || b.Place() != 1 || a.Shared() {
		t.Errorf("%v were cleaned, places %d and %d", got, a.Place(), b.Place())
	}
	if err := b.Begin(); !errors.Is(err, handover.ErrBusy) {
		t.Errorf("got %v for the turn of another process", err)
	}
	handOver(t, a, b, 3)
	if got := started(t, b, "b"); len(got) != 2 || got[0] != 1 || got[1] != 3 {
		t.Errorf("%v were cleaned", got)
	}
	if !b.Lives("a") || b.Lives("b") || b.Lives("c") || b.Others() != count(3)() || !a.Shared() || !b.Shared() {
		t.Errorf("%+v of others", b.Others())
	}
	harness.Must(t, a.Report(count(2)))
	harness.Must(t, b.Report(count(1))) // it has not retired
	if b.Others() != count(2)() {
		t.Errorf("%+v of others, want 2", b.Others())
	}
	handOver(t, b, c, 1)
	started(t, c, "c")
	if c.Others() != (handover.Use{Running: 3, Idle: 2 << 30}) || !c.Lives("a") || !c.Lives("b") {
		t.Errorf("%+v of others, want 3", c.Others())
	}
	end(a)
	end(b)
	c.Watch(t.Context(), func(_ context.Context, place int, instance string) error { // returns when no other process lives
		t.Errorf("%s in place %d was killed", instance, place)
		return nil
	})
	if c.Shared() || c.Others().Running != 0 || c.Lives("a") {
		t.Error("processes live that have ended")
	}
	end(c)
	if left, err := filepath.Glob(filepath.Join(state, "processes", "*.json")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestAKilledProcessIsNoticed: the one that takes rollouts cleans its place, again after an
// error, and a process that starts later does too.
func TestAKilledProcessIsNoticed(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	a, b := join(t, state), join(t, state)
	begin(t, a, "a")
	handOver(t, a, b, 1)
	started(t, b, "b")
	a.Leave() // as the kernel does for a killed process
	tries := 0
	b.Watch(t.Context(), func(_ context.Context, place int, instance string) error {
		if tries++; place != 0 || instance != "a" {
			t.Errorf("%s in place %d was killed", instance, place)
		}
		if tries == 1 {
			return errors.New("not now")
		}
		return nil
	})
	if tries != 2 || b.Lives("a") {
		t.Errorf("%d tries", tries)
	}
	b.Leave()
	c := join(t, state)
	defer end(c)
	if got := begin(t, c, "c"); len(got) != handover.Most || c.Lives("b") {
		t.Errorf("%v were cleaned", got)
	}
}

// TestAProcessThatDoesNotBeginCleansNothing: it takes the place of a killed one, before
// another process has removed the killed one's files, only if no other place is free.
func TestAProcessThatDoesNotBeginCleansNothing(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	a, b := join(t, state), join(t, state)
	begin(t, a, "a")
	handOver(t, a, b, 1)
	started(t, b, "b")
	a.Leave()
	c, d, e := join(t, state), join(t, state), join(t, state)
	if c.Place() != 2 || d.Place() != 3 || e.Place() != 0 {
		t.Fatalf("places %d, %d and %d", c.Place(), d.Place(), e.Place())
	}
	for _, p := range []*handover.Process{c, d, e} {
		p.Leave()
	}
	buried := ""
	b.Watch(t.Context(), func(_ context.Context, _ int, instance string) error { buried = instance; return nil })
	if buried != "a" {
		t.Errorf("%q was cleaned", buried)
	}
	end(b)
}

// TestAPlaceThatIsTakenAgain: a process that has ended is forgotten, though another one
// that has not begun has its place.
func TestAPlaceThatIsTakenAgain(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	a, b := join(t, state), join(t, state)
	begin(t, a, "a")
	handOver(t, a, b, 3)
	started(t, b, "b")
	end(a)
	c := join(t, state)
	defer end(c)
	if c.Place() != 0 {
		t.Fatalf("place %d", c.Place())
	}
	b.Watch(t.Context(), func(_ context.Context, place int, instance string) error {
		t.Errorf("%s in place %d was killed", instance, place)
		return nil
	})
	if b.Others().Running != 0 || b.Lives("a") {
		t.Errorf("%+v of others", b.Others())
	}
	end(b)
}

// TestOneProcessFollows at a time.
func TestOneProcessFollows(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	a, b, c := join(t, state), join(t, state), join(t, state)
	defer end(a)
	defer end(b)
	defer end(c)
	begin(t, a, "a")
	harness.Must(t, a.Listen())
	ctx, stop := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go func() { followed <- b.Follow(ctx) }()
	<-a.Asked()
	if err := c.Follow(t.Context()); err == nil || !strings.Contains(err.Error(), "already waits") {
		t.Errorf("a second process that follows: %v", err)
	}
	stop()
	if err := <-followed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestFewProcessesLiveAtTheSameTime(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	for range handover.Most {
		defer join(t, state).Leave()
	}
	if p, err := handover.Join(state); err == nil {
		p.Leave()
		t.Error("a further process has a place")
	}
}

// TestAProcessThatHearsNothing: the wait for its turn ends with the context, also while
// something else is in the place of the pipe.
func TestAProcessThatHearsNothing(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	a, b := join(t, state), join(t, state)
	defer end(a)
	defer end(b)
	begin(t, a, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := b.Follow(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	harness.Must(t, os.WriteFile(filepath.Join(state, "worker.handover"), nil, 0o600))
	if err := a.Listen(); err == nil {
		t.Error("a file serves as the pipe")
	}
}

// TestNoOthers: the only process of a worker is nil.
func TestNoOthers(t *testing.T) {
	t.Parallel()
	var p *handover.Process
	cleaned := 0
	harness.Must(t, p.Start("a", 1, func(int) { cleaned++ }))
	harness.Must(t, p.Report(count(1)))
	p.Ended()
	p.Watch(t.Context(), nil)
	if cleaned != 1 || p.Place() != 0 || p.Lives("a") || p.Shared() || p.Others().Running != 0 || p.Asked() != nil {
		t.Error("it has others")
	}
}
