// Package trainer connects a training loop to turngate: it submits rollouts,
// answers the agents' model calls, and collects results.
//
// Dial connects. A pulling loop calls Next and answers each Pending when it likes;
// Serve calls a function for each call. The package accepts calls, keeps them alive with
// beats and keeps each answer, so a worker that asks again gets the same one. A new
// generation begins only after a retryable fault, a refused answer or a restart.
package trainer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/schema"
)

// Trainer is the connection of one process under a trainer's name. Several processes
// may use one name, each with its own shard. It is safe for concurrent use.
type Trainer struct {
	requests *queue.Trainer
	calls    *modelcall.Server
	cfg      Config
	life     context.Context
	stop     context.CancelCauseFunc
	bg       sync.WaitGroup
	unsub    []func()
	own      *broker.Broker // the connection that Dial made; nil: the caller's

	hashers   sync.Pool      // of *schema.Hasher
	process   schema.Process // this one
	attached  atomic.Bool    // this process has the calls of its shard
	displaced chan struct{}  // capacity 1: another process may have its place

	gens     atomic.Int64
	refusals atomic.Int64

	keeping sync.Mutex // rollouts are adopted one after the other

	mu          sync.Mutex
	rollouts    map[schema.ID]*rollout
	queue       []*Pending
	arrived     chan struct{}   // capacity 1: the queue has calls
	serving     *serving        // takes calls without the queue; nil: Serve does not run
	fresh       []*state        // newly opened calls, oldest first; accept looks at them after acceptAfter
	hold        *Selection      // the rollouts to hold; nil: none
	holdSerial  int64           // serial number of the last message about a hold
	holdTold    int             // messages about the hold since it changed
	instance    string          // random name of this process
	agents      map[string]bool // that workers have, or have had
	outstanding map[schema.ID]*submitted
	groups      map[string]map[schema.ID]struct{} // ids of outstanding
	slots       slots
	ledger      *ledger
	orphans     map[schema.ID]uint64 // that are cancelled, with their sequences in the queue; 0: not known
	bundles     map[string][]byte
	bundleBytes int
	stuck       map[string]bool          // reasons that tellStuck has logged; used by it alone
	store       string                   // name of the store, see queue.Trainer.Store; used by poll alone
	resultsFrom uint64                   // stream sequence from which poll looks for results
	news        map[string]chan struct{} // a channel for each group, and under "" for all groups; closed to make callers of nextOf look again
	hinted      map[schema.ID]struct{}   // outstanding rollouts that may have a result
	unread      map[schema.ID]struct{}   // rollouts whose result could not be read; the next poll moves them to hinted
	over        map[schema.ID]struct{}   // rollouts of other processes that may have a result
	overReady   chan struct{}            // capacity 1: over has rollouts
	recent      recent                   // rollouts with a hint of a result: a call may arrive after it
	delivered   recent                   // rollouts whose results were returned: they are no orphans
	adopting    bool                     // orphans that will be adopted are looked for
}

const (
	beatEvery = 5 * time.Second
	// acceptAfter delays the accept, since a call that is answered at once
	// needs none. It is far below the two seconds that a worker waits for an
	// accept.
	acceptAfter = 200 * time.Millisecond
	// pollEvery is the time after which results are looked for, in case a hint was
	// lost. It costs two reads, and one for each new result.
	pollEvery = 5 * time.Second
	// forgetAfter is the time without a call after which the state of a rollout
	// is dropped, if no result came.
	forgetAfter = 24 * time.Hour
)

// startTimeout bounds the wait for this trainer's streams. If one is missing, the
// trainer asks any worker to make it.
const startTimeout = 30 * time.Second

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the trainer is closed")

// Dial connects a trainer to NATS. From then on it accepts calls. The context
// bounds the connecting. If this trainer's streams do not exist yet, Dial waits up to
// 30 s for a worker that makes them. A wrong field of the configuration gives a
// *schema.InvalidError; other errors are of the connection or the State file.
func Dial(ctx context.Context, c Config) (_ *Trainer, err error) {
	if err := schema.CheckTrainer(c.Name); err != nil {
		return nil, err
	}
	c.Shard = cmp.Or(c.Shard, schema.DefaultShard)
	if err := cmp.Or(schema.CheckToken("shard", c.Shard), checkSlots(c.Slots), checkOrphans(c.Orphans)); err != nil {
		return nil, err
	}
	var own *broker.Broker
	if c.Broker == nil {
		own, err = broker.Dial(ctx, broker.Config{URL: c.URL, Creds: c.Creds, Name: "trainer " + c.Name, Inbox: broker.InboxFor("trainer", c.Name), Log: c.Log})
		if err != nil {
			return nil, err
		}
		c.Broker = own
	}
	t, err := start(ctx, c)
	if err != nil {
		if own != nil {
			own.Close()
		}
		return nil, err
	}
	t.own = own
	return t, nil
}

// start starts a trainer on an open connection.
func start(ctx context.Context, c Config) (*Trainer, error) {
	requests, err := queue.NewTrainer(c.Broker, c.Name)
	if err != nil {
		return nil, err
	}
	calls, err := modelcall.NewServer(c.Broker, c.Name)
	if err != nil {
		return nil, err
	}
	c.AuditEvery = cmp.Or(c.AuditEvery, auditEvery)
	t := &Trainer{
		requests: requests, calls: calls, cfg: c, agents: map[string]bool{}, rollouts: map[schema.ID]*rollout{}, hinted: map[schema.ID]struct{}{}, unread: map[schema.ID]struct{}{}, bundles: map[string][]byte{},
		outstanding: map[schema.ID]*submitted{}, groups: map[string]map[schema.ID]struct{}{}, news: map[string]chan struct{}{},
		arrived: make(chan struct{}, 1), overReady: make(chan struct{}, 1), over: map[schema.ID]struct{}{}, instance: newInstance(), holdTold: releaseTold,
		slots: newSlots(c.Slots), displaced: make(chan struct{}, 1), orphans: map[schema.ID]uint64{}, stuck: map[string]bool{}, adopting: c.Orphans == AdoptOrphans && !c.AnswerAll,
	}
	var known map[schema.ID]*submitted
	if t.ledger, known, err = openLedger(c.State, c.Shard, c.Log); err != nil {
		return nil, err
	}
	for id, s := range known {
		t.addOutstanding(s)
		t.hinted[id] = struct{}{} // its result may have arrived
	}
	t.life, t.stop = context.WithCancelCause(context.Background())
	t.process = t.thisProcess()
	if err := t.open(ctx); err != nil {
		t.Close()
		return nil, err
	}
	for _, subscribe := range []func() (func(), error){
		func() (func(), error) { return requests.Processes.Heard(t.instance, func() { wake(t.displaced) }) },
		func() (func(), error) { return requests.Results.Hints(t.onHints) },
		func() (func(), error) { return calls.Listen(c.Shard, t.onCall) },
		func() (func(), error) { return t.listenTools() },
		func() (func(), error) { return t.listenVerifications() },
	} {
		unsub, err := subscribe()
		if err != nil {
			t.Close()
			return nil, err
		}
		t.unsub = append(t.unsub, unsub)
	}
	if err := t.attach(ctx); err != nil {
		t.Close()
		return nil, err
	}
	t.bg.Go(t.keepAttached)
	t.every(acceptAfter/2, t.accept)
	t.every(beatEvery, t.beat)
	t.every(c.AuditEvery, t.audit)
	t.every(cancelEvery, t.repeatCancels)
	t.every(pollEvery, t.poll)
	t.every(queueEvery, t.tellStuck)
	t.bg.Go(t.dropOver)
	if restored := slices.Collect(maps.Keys(known)); c.Slots > 0 && len(restored) > 0 {
		t.bg.Go(func() { t.lookAtRestored(restored) })
	}
	t.every(beatEvery, t.tellHold)
	return t, nil
}

// open waits for this trainer's streams.
func (t *Trainer) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := t.requests.AwaitSetup(ctx)
	if err == nil {
		t.resultsFrom, err = t.requests.Results.From(ctx, 0, nil)
	}
	if err == nil {
		t.store, err = t.requests.Results.Store(ctx)
	}
	return err
}

// every runs the function do once per interval until Close.
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

// Close stops the trainer. It does not answer open calls: their workers ask
// another process of this trainer, or this one after a restart.
func (t *Trainer) Close() {
	t.stop(ErrClosed)
	for _, u := range t.unsub {
		u()
	}
	t.mu.Lock() // onCall and Trainer.admit check life and add to bg under the lock: from here on neither adds
	t.queue = nil
	t.mu.Unlock()
	t.bg.Wait()
	t.ledger.close()
	if t.own != nil {
		t.own.Close()
	}
}

// NewID returns the id of a rollout of this trainer for a name of the caller's.
// The same name gives the same id.
func (t *Trainer) NewID(name string) (schema.ID, error) { return schema.NewID(t.cfg.Name, name) }

// wake sends on a channel of capacity 1 without blocking.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// newInstance returns a random name of this process, the prefix of its
// generations' names.
func newInstance() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// onCall handles a worker's message about a call: a new or repeated request, a
// cancel, or a refused answer.
func (t *Trainer) onCall(a modelcall.IncomingCall) {
	t.mu.Lock()
	if t.life.Err() != nil || !t.attached.Load() {
		t.mu.Unlock()
		return
	}
	r := t.rollouts[a.Key.Rollout]
	if a.Reject != nil {
		t.mu.Unlock()
		t.refused(a)
		return
	}
	if r == nil && !a.Cancel {
		r = newRollout()
		t.rollouts[a.Key.Rollout] = r
		id := a.Key.Rollout
		t.bg.Go(func() { t.learn(id, r) })
		if t.recent.has(id) {
			t.mayHaveEnded(id)
		}
	}
	if r != nil && !r.ready {
		r.wait(a)
		t.mu.Unlock()
		return
	}
	if r == nil || a.Cancel {
		cancelled := r.remove(a)
		t.mu.Unlock()
		if cancelled != nil {
			cancelled.end(errCancelled)
		}
		return
	}
	if !t.answers(a.Key.Rollout) {
		t.mu.Unlock()
		return
	}
	r.touched = time.Now()
	if a.Key.Attempt < r.attempt {
		t.mu.Unlock()
		t.sendFault(a, staleFault("attempt %d is over, %d has begun", a.Key.Attempt, r.attempt))
		return
	}
	stale := r.advance(a.Key.Attempt)
	c := r.of(a)[a.Key.Call]
	fresh := c == nil
	if fresh {
		c = t.newState(a.Key)
		r.of(a)[a.Key.Call] = c
	}
	held := t.holds(a.Key.Rollout)
	var answered []*state
	for _, n := range a.Answered {
		if s := r.of(a)[n]; s != nil {
			answered = append(answered, s)
		}
	}
	t.bg.Add(1) // Close waits for the rest of this method: sawAttempt writes the ledger, and runTool and runVerifier start goroutines
	t.mu.Unlock()
	t.sawAttempt(a.Key.Rollout, a.Key.Attempt)
	for _, s := range answered {
		s.settle()
	}
	for _, s := range stale {
		s.end(errCancelled)
	}
	switch {
	case !fresh:
		c.attach(a, held)
	case a.Tool:
		t.runTool(c, a)
	case a.Verify:
		t.runVerifier(c, a)
	}
	t.bg.Done()
	if fresh && !a.Tool && !a.Verify { // after Done: begin may run an Answerer, which Close must not wait for
		t.begin(&Pending{state: c}, a, held)
	}
}

// answers reports whether this process answers the calls of a rollout. The caller
// holds the lock.
func (t *Trainer) answers(id schema.ID) bool { return t.cfg.AnswerAll || t.outstanding[id] != nil }

// learn reads the highest attempt of a rollout that is new to this process. So a
// restarted trainer does not answer a fenced worker.
func (t *Trainer) learn(id schema.ID, r *rollout) {
	ctx, cancel := context.WithTimeout(t.life, time.Second) // its worker waits two seconds for a frame
	defer cancel()
	s, err := t.requests.Records.State(ctx, id)
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
	over, answers := s.Status.Terminal(), t.answers(id)
	if over && t.rollouts[id] == r {
		delete(t.rollouts, id)
	}
	t.mu.Unlock()
	if !over && !answers && !t.foundOrphan(ctx, id) {
		return
	}
	for _, a := range waiting {
		if over {
			t.sendFault(a, staleFault("the rollout has a result"))
			continue
		}
		go t.onCall(a) // not a part of bg: it may run an Answerer
	}
}

// staleFault refuses a call of an attempt or a rollout that has ended.
func staleFault(format string, args ...any) *schema.Fault {
	f := schema.Faultf("call", schema.CodeStaleAttempt, schema.WhoWorker, format, args...)
	f.Status = http.StatusConflict
	return f
}

// begin decodes and checks a new call. Serve answers it at once if it has room;
// otherwise begin queues it.
func (t *Trainer) begin(p *Pending, a modelcall.IncomingCall, held bool) {
	p.Call.Gen, p.Call.pending = p.state.gen, p
	err := schema.Decode(a.Body, &p.Call.Call)
	needFull := false
	switch {
	case err != nil:
	case !a.Key.Is(p.Call.Key):
		err = fmt.Errorf("key: %q does not match the subject's %s", p.Call.Key, a.Key)
	default:
		needFull, err = t.rebuild(a.Key, &p.Call)
	}
	close(p.state.read)
	if needFull {
		t.forget(a.Key)
		if err := a.Send(modelcall.Frame{Kind: schema.FrameNeedFull}); err != nil {
			t.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a frame was not sent")
		}
		return
	}
	var fault *schema.Fault
	if err != nil {
		fault = schema.Faultf("call", schema.CodeInvalid, schema.WhoWorker, "%v", err)
		fault.Status = 400
	} else if t.cfg.Check != nil {
		fault = t.cfg.Check(&p.Call.Call)
	}
	p.state.open(a)
	if fault != nil {
		if err := p.Fault(fault); err != nil {
			t.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a refusal was not sent")
		}
		return
	}
	if held {
		p.state.sendBeat(true)
	}
	t.mu.Lock()
	if s := t.serving; s != nil && !t.holds(a.Key.Rollout) && s.admit(p) {
		t.mu.Unlock()
		s.answer(p)
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

func (t *Trainer) sendFault(a modelcall.IncomingCall, f *schema.Fault) {
	body, err := t.calls.EncodeFrame(t.life, f)
	if err == nil {
		err = a.Send(modelcall.Frame{Kind: schema.FrameFault, Gen: t.newGen(), Body: body})
	}
	if err != nil {
		t.cfg.Log.Debug().Err(err).Str("call", a.Key.String()).Msg("a fault was not sent")
	}
}

// accept sends an accept for calls that were not answered at once.
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

// beat sends beats for open calls. It also drops rollouts without a call for
// forgetAfter.
func (t *Trainer) beat() {
	t.mu.Lock()
	var all []*state
	for id, r := range t.rollouts {
		if time.Since(r.touched) > forgetAfter {
			t.drop(id)
			continue
		}
		all = append(all, r.allCalls()...)
	}
	waiting := make(map[*state]bool, len(t.queue))
	for _, p := range t.queue {
		waiting[p.state] = t.holds(p.state.key.Rollout)
	}
	t.mu.Unlock()
	for _, c := range all {
		c.sendBeat(waiting[c])
	}
}

// drop drops the calls of a rollout. The caller holds the lock.
func (t *Trainer) drop(id schema.ID) {
	r := t.rollouts[id]
	if r == nil {
		return
	}
	delete(t.rollouts, id)
	for _, c := range r.allCalls() {
		c.end(errCancelled)
	}
}
