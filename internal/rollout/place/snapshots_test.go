package place

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// copied is a snapshot that records its removal.
type copied struct {
	removed atomic.Int32
	fails   atomic.Int32 // number of removals that fail
}

func (c *copied) Remove(context.Context) error {
	if c.fails.Add(-1) >= 0 {
		return errors.New("the image is in use")
	}
	c.removed.Add(1)
	return nil
}

func key(n byte) snapshotKey { return snapshotKey{n} }

// runSnapshots returns running snapshots; stop ends their Run.
func runSnapshots(t *testing.T) (s *Snapshots, failures *atomic.Int32, stop func()) {
	t.Helper()
	failures = &atomic.Int32{}
	s = NewSnapshots(0, func(error) { failures.Add(1) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	return s, failures, func() { cancel(); <-done }
}

func join(t *testing.T, s *Snapshots, n byte) *share {
	t.Helper()
	sh, err := s.join(t.Context(), key(n))
	if err != nil {
		t.Fatal(err)
	}
	return sh
}

// ready makes a snapshot that no rollout uses.
func ready(t *testing.T, s *Snapshots, n byte) *copied {
	t.Helper()
	made, sh := &copied{}, join(t, s, n)
	if !sh.makes {
		t.Fatal("the first rollout is not the maker")
	}
	sh.publish(made, "alpha-1", "")
	if sh.makes || sh.snapshot != sandboxes.Snapshot(made) {
		t.Fatal("the maker does not begin with its own snapshot")
	}
	sh.leave()
	return made
}

func TestAnIdleSnapshotIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, stop := runSnapshots(t)
		made := ready(t, s, 1)
		time.Sleep(idleSnapshot - time.Second)
		if sh := join(t, s, 1); sh.makes || sh.from != "alpha-1" {
			t.Fatal("the second rollout does not begin with the snapshot")
		} else {
			time.Sleep(2 * idleSnapshot)
			if made.removed.Load() != 0 {
				t.Error("a snapshot in use was removed")
			}
			sh.leave()
		}
		time.Sleep(idleSnapshot + time.Second)
		if made.removed.Load() != 1 {
			t.Error("an idle snapshot was not removed")
		}
		if sh := join(t, s, 1); !sh.makes {
			t.Error("no rollout makes the snapshot anew")
		} else {
			sh.leave()
		}
		stop()
	})
}

func TestFewSnapshotsAreIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, stop := runSnapshots(t)
		var all []*copied
		for n := range byte(maxIdleSnapshots + 2) {
			all = append(all, ready(t, s, n))
			time.Sleep(time.Second)
		}
		for n, made := range all {
			if want := map[bool]int32{true: 1}[n < 2]; made.removed.Load() != want { // the oldest ones
				t.Errorf("snapshot %d was removed %d times", n, made.removed.Load())
			}
		}
		stop()
		for n, made := range all {
			if made.removed.Load() != 1 {
				t.Errorf("at the end snapshot %d was removed %d times", n, made.removed.Load())
			}
		}
	})
}

func TestARemovalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, failures, stop := runSnapshots(t)
		made := ready(t, s, 1)
		made.fails.Store(1)
		time.Sleep(idleSnapshot + time.Second)
		if made.removed.Load() != 0 || failures.Load() != 1 {
			t.Errorf("removed %d times, %d failures", made.removed.Load(), failures.Load())
		}
		stop()
		if made.removed.Load() != 1 {
			t.Error("a snapshot was left")
		}
	})
}

// TestAGroupDoesNotRunOneAfterTheOther: after two makers that end without a copy, all
// that wait run their own setup at once.
func TestAGroupDoesNotRunOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, stop := runSnapshots(t)
		first := join(t, s, 1)
		joined := make(chan *share, 5)
		for range cap(joined) {
			go func() {
				sh, err := s.join(t.Context(), key(1))
				if err != nil {
					t.Error(err)
				}
				joined <- sh
			}()
		}
		synctest.Wait()
		first.leave()
		second := <-joined
		synctest.Wait()
		if !second.makes || len(joined) != 0 {
			t.Fatal("not one of them makes the snapshot now")
		}
		second.leave()
		for range cap(joined) - 1 {
			if sh := <-joined; sh.makes || sh.snapshot != nil || sh.whyNone == "" {
				t.Errorf("got %+v", sh)
			} else {
				sh.leave()
			}
		}
		stop()
	})
}

func TestEveryFieldOfTheSetupIsInItsKey(t *testing.T) {
	base := schema.Request{Trainer: "a", Group: "g", Sandbox: schema.SandboxChoice{Backend: "docker"}}
	seen := map[snapshotKey]string{}
	for name, change := range map[string]func(*schema.Request){
		"base":    func(*schema.Request) {},
		"trainer": func(q *schema.Request) { q.Trainer = "b" },
		"group":   func(q *schema.Request) { q.Group = "h" },
		"bundle":  func(q *schema.Request) { q.Task.Bundle = "0" },
		"agent":   func(q *schema.Request) { q.Agent.Name = "mini" },
		"user":    func(q *schema.Request) { q.Agent.User = "u" },
		"image":   func(q *schema.Request) { q.Sandbox.Image = "i" },
		"env":     func(q *schema.Request) { q.Sandbox.Env = map[string]string{"A": "1"} },
		"setup":   func(q *schema.Request) { q.Setup = []schema.Command{{Run: "x"}} },
		"health":  func(q *schema.Request) { q.Healthcheck = &schema.Healthcheck{Run: "x"} },
	} {
		q := base
		change(&q)
		k, err := keyOf(&q)
		if err != nil {
			t.Fatal(err)
		}
		if other := seen[k]; other != "" {
			t.Errorf("%s and %s have one key", name, other)
		}
		seen[k] = name
	}
	same := base
	same.ID, same.Index, same.Task.Instruction = "a-2", 7, "another"
	if k, err := keyOf(&same); err != nil || seen[k] != "base" {
		t.Errorf("another member of the group has another key, %v", err)
	}
}
