package place

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Snapshots are the snapshots of the groups that run on one worker. One rollout of a
// group makes a snapshot after its setup, and all rollouts of the group begin with
// it.
type Snapshots struct {
	max    int64       // bounds the files of one snapshot; 0: no bound, below 0: none are made
	failed func(error) // receives errors of removals, which are tried again

	mu       sync.Mutex
	groups   map[snapshotKey]*groupSetup
	unwanted []sandboxes.Snapshot // to be removed
	wake     chan struct{}        // of capacity 1; has a value after discard
}

// NewSnapshots returns snapshots of at most maxBytes each; 0: no bound, below 0: none
// are made.
func NewSnapshots(maxBytes int64, failed func(error)) *Snapshots {
	return &Snapshots{max: maxBytes, failed: failed, groups: map[snapshotKey]*groupSetup{}, wake: make(chan struct{}, 1)}
}

// Run removes snapshots that no group needs, until the context ends, and then all of
// them, within 10 seconds. No rollout may run then.
func (s *Snapshots) Run(ctx context.Context) {
	var again <-chan time.Time // nil: no removal failed
	for ctx.Err() == nil {
		select {
		case <-s.wake:
		case <-again:
		case <-ctx.Done():
			continue
		}
		again = nil
		if s.removeUnwanted(ctx) {
			again = time.After(removeAgain)
		}
	}
	s.mu.Lock()
	for _, g := range s.groups {
		s.remove(g)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	s.removeUnwanted(ctx)
}

// removeUnwanted removes snapshots and reports whether a removal failed.
func (s *Snapshots) removeUnwanted(ctx context.Context) (failed bool) {
	s.mu.Lock()
	all := s.unwanted
	s.unwanted = nil
	s.mu.Unlock()
	for _, one := range all {
		if err := one.Remove(ctx); err != nil {
			s.failed(err)
			failed = true
			s.mu.Lock()
			s.unwanted = append(s.unwanted, one)
			s.mu.Unlock()
		}
	}
	return failed
}

const (
	// removeAgain is the time after which a failed removal is tried again.
	removeAgain = time.Minute
	// idleSnapshot is the time for which a snapshot without rollouts stays.
	idleSnapshot = 5 * time.Minute
	// maxIdleSnapshots is the largest number of snapshots without rollouts.
	maxIdleSnapshots = 4
	// maxMakers is the number of rollouts of a group that try to make a snapshot one
	// after the other. After that each rollout runs its own setup.
	maxMakers = 2
	// closeWithin bounds the last removals. The next start of the worker removes the
	// other snapshots.
	closeWithin = 10 * time.Second
)

// snapshotKey is a hash of the trainer, the group, and everything that has an effect
// on the files of a sandbox after its setup.
type snapshotKey [sha256.Size]byte

func keyOf(q *schema.Request) (snapshotKey, error) {
	text, err := json.Marshal(struct {
		Trainer, Group, Bundle, Agent, User string
		Sandbox                             schema.SandboxChoice
		Setup                               []schema.Command
		Health                              *schema.Healthcheck
	}{q.Trainer, q.Group, q.Task.Bundle, q.Agent.Name, q.Agent.User, q.Sandbox, q.Setup, q.Healthcheck})
	if err != nil {
		return snapshotKey{}, fmt.Errorf("hash the setup of a request: %w", err)
	}
	return sha256.Sum256(text), nil
}

// groupSetup is the snapshot of one key. Snapshots.mu guards its fields.
type groupSetup struct {
	key      snapshotKey
	users    int           // rollouts that make it, wait for it or use it
	making   chan struct{} // closed when its maker has published or left; nil: no rollout makes it
	makers   int           // rollouts that have tried
	snapshot sandboxes.Snapshot
	from     schema.ID   // the rollout that made it
	whyNone  string      // reason why each rollout runs its own setup
	idle     *time.Timer // removes it; nil while it has users
	since    time.Time   // of the last use
}

// share is the part of one rollout in a groupSetup.
type share struct {
	all      *Snapshots
	group    *groupSetup
	makes    bool               // this rollout is the maker
	snapshot sandboxes.Snapshot // nil: this rollout runs its own setup
	from     schema.ID
	whyNone  string
}

// join returns a rollout's share. It waits while another rollout makes the
// snapshot. The caller calls leave after its sandbox is closed.
func (s *Snapshots) join(ctx context.Context, key snapshotKey) (*share, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[key]
	if g == nil {
		g = &groupSetup{key: key}
		s.groups[key] = g
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
	sh := &share{all: s, group: g}
	sh.look()
	return sh, nil
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

// look copies the state of the group. If the group has no snapshot, no maker and no
// reason against one, this rollout becomes the maker, unless maxMakers have tried.
func (sh *share) look() {
	g := sh.group
	if g.snapshot == nil && g.making == nil && g.whyNone == "" {
		if g.makers++; g.makers > maxMakers {
			g.whyNone = fmt.Sprintf("%d rollouts of the group did not come to the end of their setup", maxMakers)
		} else {
			sh.makes, g.making = true, make(chan struct{})
		}
	}
	sh.snapshot, sh.from, sh.whyNone = g.snapshot, g.from, g.whyNone
}

// publish gives the maker's snapshot, or the reason why there is none, to the group.
func (sh *share) publish(snapshot sandboxes.Snapshot, from schema.ID, whyNone string) {
	sh.all.mu.Lock()
	defer sh.all.mu.Unlock()
	sh.group.snapshot, sh.group.from, sh.group.whyNone, sh.group.makers = snapshot, from, whyNone, 0
	sh.end()
	sh.look()
}

// fail discards a snapshot with which no sandbox began. If final, the other rollouts run
// their own setups; otherwise the next one makes a snapshot.
func (sh *share) fail(made sandboxes.Snapshot, final bool) {
	sh.all.mu.Lock()
	defer sh.all.mu.Unlock()
	sh.all.discard(made)
	sh.snapshot = nil
	if final {
		sh.group.whyNone = "no sandbox began with the copy of its files"
	}
	sh.end()
}

// beginning returns the snapshot with which the agent's sandbox begins, if there is one.
func (sh *share) beginning() sandboxes.Snapshot {
	if sh == nil {
		return nil
	}
	return sh.snapshot
}

// noteOwnSetup notes why the rollout does not begin with a snapshot.
func (sh *share) noteOwnSetup(rec *record.Record) {
	rec.Note("snapshot: %s; this rollout ran its own setup", cmp.Or(sh.whyNone, "it is gone"))
}

// end ends the making if this rollout is the maker. If it left neither a snapshot nor a
// reason, the next rollout that waits becomes the maker.
func (sh *share) end() {
	if sh.makes {
		close(sh.group.making)
		sh.makes, sh.group.making = false, nil
	}
}

// drop drops a snapshot that is gone from the backend.
func (sh *share) drop() {
	sh.all.mu.Lock()
	defer sh.all.mu.Unlock()
	if sh.group.snapshot == sh.snapshot {
		sh.all.discard(sh.snapshot)
		sh.group.snapshot = nil
	}
	sh.snapshot = nil
	sh.look()
}

func (sh *share) leave() {
	sh.all.mu.Lock()
	defer sh.all.mu.Unlock()
	sh.end()
	sh.all.release(sh.group)
}

// release removes one user. A group without users stays for a while if it has a
// snapshot, or a reason for none.
func (s *Snapshots) release(g *groupSetup) {
	if g.users--; g.users > 0 {
		return
	}
	if g.snapshot == nil && g.whyNone == "" {
		delete(s.groups, g.key)
		return
	}
	g.since = time.Now()
	g.idle = time.AfterFunc(idleSnapshot, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g.users == 0 && s.groups[g.key] == g {
			s.remove(g)
		}
	})
	var oldest *groupSetup
	n := 0
	for _, other := range s.groups {
		if other.users > 0 || other.snapshot == nil {
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

// remove removes an idle group, and its snapshot if it has one.
func (s *Snapshots) remove(g *groupSetup) {
	delete(s.groups, g.key)
	g.idle.Stop()
	if g.snapshot != nil {
		s.discard(g.snapshot)
	}
}

// discard lets Run remove a snapshot.
func (s *Snapshots) discard(snapshot sandboxes.Snapshot) {
	s.unwanted = append(s.unwanted, snapshot)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
