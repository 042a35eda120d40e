// Package trainer is what a training loop links: it submits rollouts, answers
// the agents' model calls, and collects results.
//
// A loop that pulls uses Next and answers each Pending when it likes; Serve
// does that around a function. Calls are accepted, kept alive with beats and
// answered once per key by this package, so a worker that asks again never
// makes a second generation.
package trainer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// Config describes a trainer.
type Config struct {
	Broker *broker.Broker
	Name   string // of the trainer, see schema.CheckTrainer
	Shard  string // hear the calls of one shard; empty: of all
	Lane   *int   // priority of what is submitted, 0 is the most urgent; nil: 2
	// Check looks at a call before it is accepted, without generating, for
	// example at its length. Its fault refuses the call. Nil: everything passes.
	Check func(*schema.Call) *schema.Fault
	// Tools are what this trainer runs for agents whose request lists them in
	// agent.tools. An error of one is read by the model as the tool's.
	Tools map[string]Tool
	// State is a file in which outstanding rollouts are kept, so that this
	// trainer started again still waits for them. Empty: they are not kept.
	State string
	// AuditEvery is how often rollouts are looked after that the broker may
	// have lost. Default 5 min.
	AuditEvery time.Duration
	Log        zerolog.Logger
}

// Trainer is one process of a trainer. It is safe for concurrent use.
type Trainer struct {
	side  *broker.TrainerSide
	cfg   Config
	life  context.Context
	stop  context.CancelCauseFunc
	bg    sync.WaitGroup
	unsub []func()

	hashers sync.Pool // of *schema.Hasher
	gens    atomic.Int64

	mu          sync.Mutex
	rollouts    map[schema.ID]*rollout
	queue       []*Pending
	arrived     chan struct{}         // has room for one: something is queued
	serve       func(*Pending) func() // of a running Serve: takes calls without the queue; what it returns answers
	fresh       []*state              // calls whose worker was told nothing yet, oldest first
	hold        func(schema.ID) bool  // whose calls wait; nil: nobody's
	holdAll     bool                  // everybody's
	holdSerial  int64                 // of what workers were told of it
	holdTold    int                   // how often, since it changed
	instance    string                // of this process
	outstanding map[schema.ID]*submitted
	ledger      *ledger
	bundles     map[string][]byte
	bundleBytes int
	resultsFrom uint64        // where to look for results whose hint was lost
	resulted    chan struct{} // has room for one: a result is there, or may be
	hinted      map[schema.ID]struct{}
}

// rollout is what is kept of a rollout until its result.
type rollout struct {
	attempt int // the highest seen
	// waiting are calls that came while the rollout's state was being read,
	// which the first call of every rollout waits for: this process may be new.
	waiting []broker.Asked
	ready   bool
	calls   map[int]*state
	tools   map[int]*state // calls of tools
	known   []*known       // whole calls, for later ones that are based on them
	touched time.Time
	version string // of the policy, that made its newest answer
}

func newRollout() *rollout {
	return &rollout{calls: map[int]*state{}, tools: map[int]*state{}}
}

// of are the calls of one kind.
func (r *rollout) of(a broker.Asked) map[int]*state {
	if a.Tool {
		return r.tools
	}
	return r.calls
}

// open lists the calls of both kinds.
func (r *rollout) open() []*state {
	return slices.AppendSeq(slices.Collect(maps.Values(r.calls)), maps.Values(r.tools))
}

const (
	beatEvery = 5 * time.Second
	// acceptAfter delays the accept, since a call that is answered at once
	// needs none. It is far below the two seconds in which a worker waits for
	// one.
	acceptAfter = 200 * time.Millisecond
	// pollEvery looks for results whose hint was lost. It costs two reads and
	// one for each new result.
	pollEvery = 5 * time.Second
	// forgetAfter drops what is kept of a rollout that nobody asks about any
	// more and whose result was not submitted from here.
	forgetAfter = 24 * time.Hour
)

// startTimeout is how long a new trainer waits for a server whose first worker
// has yet to make the streams.
const startTimeout = 30 * time.Second

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the trainer is closed")

// New starts a trainer: from now on its calls are accepted.
func New(c Config) (*Trainer, error) {
	side, err := c.Broker.TrainerSide(c.Name)
	if err != nil {
		return nil, err
	}
	if c.Shard != "" {
		if err := schema.CheckToken("shard", c.Shard); err != nil {
			return nil, err
		}
	}
	c.AuditEvery = cmp.Or(c.AuditEvery, auditEvery)
	t := &Trainer{
		side: side, cfg: c, rollouts: map[schema.ID]*rollout{}, hinted: map[schema.ID]struct{}{}, bundles: map[string][]byte{},
		arrived: make(chan struct{}, 1), resulted: make(chan struct{}, 1), instance: newInstance(), holdTold: releaseTold,
	}
	if t.ledger, t.outstanding, err = openLedger(c.State); err != nil {
		return nil, err
	}
	for id := range t.outstanding { // their results may be there
		t.hinted[id] = struct{}{}
	}
	wake(t.resulted)
	t.life, t.stop = context.WithCancelCause(context.Background())
	start, cancel := context.WithTimeout(t.life, startTimeout)
	defer cancel()
	if err = side.AwaitSetup(start); err == nil {
		t.resultsFrom, err = side.ResultsFrom(start, 0, nil)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	for _, subscribe := range []func() (func(), error){
		func() (func(), error) { return side.Hints(t.onHint) },
		func() (func(), error) { return side.Listen(c.Shard, t.onAsked) },
		func() (func(), error) { return t.listenTools() },
	} {
		unsub, err := subscribe()
		if err != nil {
			t.Close()
			return nil, err
		}
		t.unsub = append(t.unsub, unsub)
	}
	t.every(acceptAfter/2, t.accept)
	t.every(beatEvery, t.beat)
	t.every(c.AuditEvery, t.audit)
	t.every(cancelEvery, t.repeatCancels)
	t.every(pollEvery, t.poll)
	t.every(beatEvery, t.tellHold)
	return t, nil
}

// every does something again and again until Close.
func (t *Trainer) every(d time.Duration, do func()) {
	t.bg.Go(func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-t.life.Done():
				return
			case <-tick.C:
				do()
			}
		}
	})
}

// Close stops hearing calls. Open ones are not answered: another process of
// this trainer, or this one started again, will be asked.
func (t *Trainer) Close() {
	t.stop(ErrClosed)
	for _, u := range t.unsub {
		u()
	}
	t.mu.Lock() // a call that is being taken has begun all it will begin
	t.queue = nil
	t.mu.Unlock()
	t.bg.Wait()
	t.ledger.close()
}

// PutBundle keeps a task's files where workers find them, and returns the
// sha256 for schema.Task.Bundle. This process remembers them, up to a GiB, and
// puts them there again when the broker has lost a rollout that needs them. While
// NATS cannot be reached it waits, until the context ends.
func (t *Trainer) PutBundle(ctx context.Context, data []byte) (string, error) {
	sha, err := t.side.PutBundle(ctx, data)
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bundles[sha] == nil && t.bundleBytes+len(data) <= maxBundles {
		t.bundles[sha] = data
		t.bundleBytes += len(data)
	}
	return sha, nil
}

const maxBundles = 1 << 30

// Artifact reads a file that a rollout left. While NATS cannot be reached it
// waits, until the context ends.
func (t *Trainer) Artifact(ctx context.Context, a schema.Artifact) ([]byte, error) {
	return t.side.Artifact(ctx, a.SHA256)
}

// wake fills a channel that has room for one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// newInstance names this process; its generations have names of their own
// behind it.
func newInstance() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// onAsked takes a call as it comes from a worker, and may answer it.
func (t *Trainer) onAsked(a broker.Asked) {
	t.mu.Lock()
	if t.life.Err() != nil {
		t.mu.Unlock()
		return
	}
	r := t.rollouts[a.Key.Rollout]
	if r == nil && !a.Cancel {
		r = newRollout()
		t.rollouts[a.Key.Rollout] = r
		id := a.Key.Rollout
		t.bg.Go(func() { t.learn(id, r) })
	}
	if r != nil && !r.ready {
		if a.Cancel {
			key, tool := a.Key, a.Tool
			r.waiting = slices.DeleteFunc(r.waiting, func(w broker.Asked) bool { return w.Key == key && w.Tool == tool })
		} else if len(r.waiting) < maxWaiting { // else its worker asks again
			r.waiting = append(r.waiting, a)
		}
		t.mu.Unlock()
		return
	}
	if r == nil || a.Cancel {
		var given *state
		if r != nil && r.attempt == a.Key.Attempt {
			given = r.of(a)[a.Key.Call]
			delete(r.of(a), a.Key.Call)
		}
		t.mu.Unlock()
		if given != nil {
			given.end(errCancelled)
		}
		return
	}
	r.touched = time.Now()
	if a.Key.Attempt < r.attempt {
		t.mu.Unlock()
		f := schema.Faultf("call", schema.CodeStaleAttempt, schema.WhoWorker, "attempt %d is over, %d has begun", a.Key.Attempt, r.attempt)
		f.Status = 409
		t.sendFault(a, "", f)
		return
	}
	var stale []*state
	if a.Key.Attempt > r.attempt {
		r.attempt = a.Key.Attempt
		stale = r.open()
		r.calls, r.tools, r.known = map[int]*state{}, map[int]*state{}, nil
	}
	c := r.of(a)[a.Key.Call]
	fresh := c == nil
	if fresh {
		c = t.newState(a.Key)
		r.of(a)[a.Key.Call] = c
	}
	held := t.holds(a.Key.Rollout)
	t.mu.Unlock()
	t.sawAttempt(a.Key.Rollout, a.Key.Attempt)
	for _, s := range stale {
		s.end(errCancelled)
	}
	if !fresh {
		c.attach(a, held)
		return
	}
	if a.Tool {
		t.runTool(c, a)
		return
	}
	t.begin(&Pending{state: c}, a, held)
}

// maxWaiting bounds the calls that wait for their rollout's state.
const maxWaiting = 64

// learn reads the highest attempt of a rollout that this process has not heard
// of, so that a worker that was fenced gets no answer from a trainer that was
// started again either.
func (t *Trainer) learn(id schema.ID, r *rollout) {
	ctx, cancel := context.WithTimeout(t.life, time.Second) // its worker waits two for a sign
	defer cancel()
	s, err := t.side.State(ctx, id)
	if err != nil && !errors.Is(err, broker.ErrNotFound) {
		t.cfg.Log.Debug().Err(err).Str("rollout", string(id)).Msg("a rollout's state could not be read")
	}
	t.mu.Lock()
	r.attempt = max(r.attempt, s.Attempt)
	if o := t.outstanding[id]; o != nil {
		r.attempt = max(r.attempt, o.attempt)
	}
	r.ready = true
	waiting := r.waiting
	r.waiting = nil
	t.mu.Unlock()
	for _, a := range waiting {
		t.bg.Go(func() { t.onAsked(a) })
	}
}

// begin decodes and checks a new call and queues it.
func (t *Trainer) begin(p *Pending, a broker.Asked, held bool) {
	err := schema.Decode(a.Body, &p.Call)
	needFull := false
	switch {
	case err != nil:
	case !a.Key.Is(p.Call.Key):
		err = fmt.Errorf("key: %q does not match the subject's %s", p.Call.Key, a.Key)
	default:
		needFull, err = t.whole(a.Key, &p.Call)
	}
	close(p.state.read)
	if needFull {
		t.forget(a.Key)
		if err := a.Send(broker.Frame{Kind: schema.FrameNeedFull}); err != nil {
			t.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a frame was not sent")
		}
		return
	}
	var fault *schema.Fault
	if err != nil {
		fault = schema.Faultf("call", schema.CodeInvalid, schema.WhoWorker, "%v", err)
		fault.Status = 400
	} else if t.cfg.Check != nil {
		fault = t.cfg.Check(&p.Call)
	}
	p.state.open(a)
	if fault != nil {
		if err := p.Fault(fault); err != nil {
			t.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a refusal was not sent")
		}
		return
	}
	if held {
		p.state.sign(true)
	}
	t.mu.Lock()
	if t.serve != nil && !t.holds(a.Key.Rollout) {
		answer := t.serve(p)
		t.mu.Unlock()
		answer()
		return
	}
	t.queue = append(t.queue, p)
	t.mu.Unlock()
	wake(t.arrived)
}

func (t *Trainer) forget(k schema.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.rollouts[k.Rollout]; r != nil && r.attempt == k.Attempt {
		delete(r.calls, k.Call)
	}
}

func (t *Trainer) sendFault(a broker.Asked, gen string, f *schema.Fault) {
	body, err := t.side.EncodeFrame(t.life, f)
	if err == nil {
		err = a.Send(broker.Frame{Kind: schema.FrameFault, Gen: gen, Body: body})
	}
	if err != nil {
		t.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a fault was not sent")
	}
}

// accept tells the workers of calls that are not answered at once that somebody
// has them.
func (t *Trainer) accept() {
	old := time.Now().Add(-acceptAfter)
	t.mu.Lock()
	n := slices.IndexFunc(t.fresh, func(s *state) bool { return s.opened.After(old) })
	if n < 0 {
		n = len(t.fresh)
	}
	due := slices.Clone(t.fresh[:n])
	t.fresh = slices.Delete(t.fresh, 0, n)
	t.mu.Unlock()
	for _, s := range due {
		s.accept()
	}
}

// beat shows the workers that open calls are alive.
func (t *Trainer) beat() {
	t.mu.Lock()
	var open []*state
	for id, r := range t.rollouts {
		open = append(open, r.open()...)
		if time.Since(r.touched) > forgetAfter {
			delete(t.rollouts, id)
		}
	}
	waiting := make(map[*state]bool, len(t.queue))
	for _, p := range t.queue {
		waiting[p.state] = t.holds(p.state.key.Rollout)
	}
	t.mu.Unlock()
	for _, c := range open {
		c.sign(waiting[c])
	}
}
