package chaos_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/subjects"
)

// TestACrashBetweenEveryTwoSteps lets a worker die at every point there is, and
// looks whether another one, and the same one started again, bring every
// rollout to exactly one result.
func TestACrashBetweenEveryTwoSteps(t *testing.T) {
	t.Parallel()
	bin := build(t)
	for _, point := range crash.Points() {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			crashAt(t, bin, point)
		})
	}
}

func crashAt(t *testing.T, bin binaries, point string) {
	t.Helper()
	flags := []string{"-rollouts", "8"}
	kind, _, _ := strings.Cut(point, ".")
	switch kind {
	case "return", "janitor":
		flags = append(flags, "-calls", "20")
	case "cancel":
		flags = append(flags, "-calls", "40", "-cancel-after", "2500ms")
	}
	if kind == "trainer" { // accepts, beats and faults need calls that take their time
		flags = append(flags, "-slow", "6s")
	}
	b := newBench(t, bin, 0, nil, flags...)
	env := crash.EnvPoint + "=" + point
	if kind == "janitor" { // first one that lives, and loses its queue
		w := b.add()
		b.await(w, "ready")
		p := openTap(t, b)
		b.start(b.trainer)
		awaitBoxes(t, b, 4)
		b.kill(w)
		purgeQueue(t, p)
		w.env = []string{env}
		b.start(w)
		awaitCrash(t, b, w, point)
		recoverFrom(t, b, p)
		return
	}
	if kind == "trainer" {
		b.await(b.add(), "ready")
		p := openTap(t, b)
		b.trainer.env = []string{env}
		b.start(b.trainer)
		awaitCrash(t, b, b.trainer, point)
		b.trainer.env = nil
		b.start(b.trainer)
		recoverFrom(t, b, p)
		return
	}
	w := b.add(env)
	b.await(w, "ready")
	p := openTap(t, b)
	b.start(b.trainer)
	switch kind {
	case "return":
		awaitBoxes(t, b, 4)
		b.signal(w, syscall.SIGTERM)
	case "bury":
		if err := p.nc.PublishMsg(&nats.Msg{Subject: subjects.Request(0, "alpha"), Data: []byte("not msgpack")}); err != nil {
			t.Fatal(err)
		}
	}
	awaitCrash(t, b, w, point)
	recoverFrom(t, b, p)
	if kind == "bury" {
		s, err := p.js.Stream(t.Context(), subjects.StreamDead)
		if err != nil || s.CachedInfo().State.Msgs != 1 {
			t.Errorf("the DEAD stream has %+v, %v", s.CachedInfo().State, err)
		}
	}
}

// recoverFrom starts another worker and the dead one again, without its fault,
// and checks what comes out.
func recoverFrom(t *testing.T, b *bench, p *tap) {
	t.Helper()
	b.await(b.add(), "ready")
	if w := b.workers[0]; !w.alive() {
		w.env = nil
		b.start(w)
	}
	f := &injector{b: b, tap: p, busy: map[*process]bool{}}
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	stuck := false
	select {
	case <-b.trainer.ended:
		stuck = !b.trainer.over()
	case <-time.After(60 * time.Second):
		stuck = true
	}
	for invariant, list := range f.finish(t, stuck).violations {
		t.Errorf("%s: %s", invariant, strings.Join(list, "; "))
	}
}

func awaitCrash(t *testing.T, b *bench, w *process, point string) {
	t.Helper()
	select {
	case <-w.ended:
	case <-time.After(40 * time.Second):
		t.Fatalf("%s never came to %s", w.role, point)
	}
	log, err := os.ReadFile(filepath.Join(b.dir, w.role+".log"))
	if err != nil || !strings.Contains(string(log), "crash: "+point+"\n") {
		t.Fatalf("%s died of something else than %s: %v", w.role, point, err)
	}
}

// awaitBoxes waits until so many sandboxes were begun.
func awaitBoxes(t *testing.T, b *bench, n int) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		data, err := os.ReadFile(filepath.Join(b.dir, "sandboxes.jsonl"))
		if err == nil && strings.Count(string(data), `"op":"create"`) >= n {
			return
		}
		select {
		case <-limit:
			t.Fatalf("%d sandboxes did not begin: %s", n, data)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// purgeQueue loses every request.
func purgeQueue(t *testing.T, p *tap) {
	t.Helper()
	s, err := p.js.Stream(t.Context(), subjects.StreamRequests)
	if err == nil {
		err = s.Purge(t.Context(), jetstream.WithPurgeKeep(0))
	}
	if err != nil {
		t.Fatal(err)
	}
}
