package worker

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Snapshots are the snapshots of the groups that run on one worker. The first
// rollout of a group makes one after its setup, and the others begin with it. A
// zero Snapshots is ready to use.
type Snapshots struct {
	// Idle is the time for which a snapshot without rollouts stays; default 5 minutes.
	Idle time.Duration
	// Failed receives errors of removals. Nil drops them.
	Failed func(error)

	mu       sync.Mutex
	entries  map[snapshotKey]*groupSetup
	removals sync.WaitGroup
}

// maxIdleSnapshots is the largest number of snapshots without rollouts.
const maxIdleSnapshots = 4

// snapshotKey is a hash of everything that has an effect on the files of a sandbox
// after its setup, of the trainer and of the group.
type snapshotKey [sha256.Size]byte

func keyOf(q *schema.Request) (snapshotKey, error) {
	text, err := json.Marshal(struct {
		Trainer, Group, Bundle, User string
		Sandbox                      schema.SandboxChoice
		Setup                        []schema.Command
		Health                       *schema.Healthcheck
	}{q.Trainer, q.Group, q.Task.Bundle, q.Agent.User, q.Sandbox, q.Setup, q.Healthcheck})
	if err != nil {
		return snapshotKey{}, fmt.Errorf("hash the setup of a request: %w", err)
	}
	return sha256.Sum256(text), nil
}

// groupSetup is the snapshot of one key. Snapshots.mu guards its fields.
type groupSetup struct {
	key      snapshotKey
	users    int           // rollouts that make it, wait for it or use it
	making   chan struct{} // closed when its maker has ended; nil: no rollout makes it
	snapshot sandboxes.Snapshot
	from     schema.ID   // the rollout that made it
	never    string      // reason why no rollout of the group can make it
	idle     *time.Timer // removes it; nil while it has users
	since    time.Time   // of the last use
}

// share is the part of one rollout in a groupSetup.
type share struct {
	all      *Snapshots
	of       *groupSetup
	makes    bool               // this rollout is the maker
	snapshot sandboxes.Snapshot // nil: this rollout runs its own setup
	from     schema.ID
	never    string
}

// join returns a rollout's share. It waits while another rollout makes the
// snapshot. The caller calls leave after its sandbox is closed.
func (s *Snapshots) join(ctx context.Context, key snapshotKey) (*share, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.entries[key]
	if g == nil {
		g = &groupSetup{key: key}
		if s.entries == nil {
			s.entries = map[snapshotKey]*groupSetup{}
		}
		s.entries[key] = g
	}
	if g.idle != nil {
		g.idle.Stop()
		g.idle = nil
	}
	g.users++
	for g.making != nil {
		if err := s.await(ctx, g.making); err != nil {
			s.release(g)
			return nil, err
		}
	}
	sh := &share{all: s, of: g, snapshot: g.snapshot, from: g.from, never: g.never}
	sh.begin()
	return sh, nil
}

// begin makes this rollout the maker if there is neither a snapshot nor a maker.
func (sh *share) begin() {
	if g := sh.of; g.snapshot == nil && g.making == nil && g.never == "" {
		sh.makes, g.making = true, make(chan struct{})
	}
}

// await waits for a channel without the lock.
func (s *Snapshots) await(ctx context.Context, c <-chan struct{}) error {
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// made gives the maker's snapshot, or the reason why there is none, to the group.
func (sh *share) made(snapshot sandboxes.Snapshot, from schema.ID, never string) {
	sh.all.mu.Lock()
	defer sh.all.mu.Unlock()
	sh.of.snapshot, sh.of.from, sh.of.never = snapshot, from, never
	sh.end()
}

// end ends the making. Without a snapshot and a reason the next rollout that waits
// becomes the maker.
func (sh *share) end() {
	if sh.makes {
		close(sh.of.making)
		sh.makes, sh.of.making = false, nil
	}
}

// lost drops a snapshot that is gone from the backend. This rollout becomes the
// maker of another one.
func (sh *share) lost() {
	sh.all.mu.Lock()
	defer sh.all.mu.Unlock()
	if sh.of.snapshot == sh.snapshot {
		sh.of.snapshot = nil
	}
	sh.snapshot = nil
	sh.begin()
}

func (sh *share) leave() {
	sh.all.mu.Lock()
	defer sh.all.mu.Unlock()
	sh.end()
	sh.all.release(sh.of)
}

// release removes one user. An entry without users stays for a while if it has a
// snapshot.
func (s *Snapshots) release(g *groupSetup) {
	if g.users--; g.users > 0 {
		return
	}
	if g.snapshot == nil {
		s.remove(g)
		return
	}
	idle := s.Idle
	if idle == 0 {
		idle = 5 * time.Minute
	}
	g.since = time.Now()
	g.idle = time.AfterFunc(idle, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g.users == 0 && s.entries[g.key] == g {
			s.remove(g)
		}
	})
	var oldest *groupSetup
	n := 0
	for _, other := range s.entries {
		if other.users > 0 {
			continue
		}
		if n++; oldest == nil || other.since.Before(oldest.since) {
			oldest = other
		}
	}
	if n > maxIdleSnapshots {
		s.remove(oldest)
	}
}

// remove removes an entry without users and its snapshot.
func (s *Snapshots) remove(g *groupSetup) {
	delete(s.entries, g.key)
	if g.idle != nil {
		g.idle.Stop()
	}
	if g.snapshot == nil {
		return
	}
	s.removals.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.snapshot.Remove(ctx); err != nil && s.Failed != nil {
			s.Failed(err)
		}
	})
}

// Close removes all snapshots and waits until they are gone. No rollout may run.
func (s *Snapshots) Close() {
	s.mu.Lock()
	for _, g := range s.entries {
		s.remove(g)
	}
	s.mu.Unlock()
	s.removals.Wait()
}
