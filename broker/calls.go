package broker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// tokens are random, for inboxes. They are made many at once, since asking for
// randomness costs the same for one.
type tokens struct{ left []byte }

func (t *tokens) next() (token [tokenSize]byte) {
	if len(t.left) == 0 {
		t.left = make([]byte, 64*tokenSize)
		_, _ = rand.Read(t.left) // never fails, see its documentation
	}
	t.left = t.left[copy(token[:], t.left):]
	return token
}

// tokenSize is in bytes.
const tokenSize = 16

// Silence that means something.
const (
	acceptWithin = 2 * time.Second // no accept: nobody is there
	beatEvery    = 5 * time.Second // a trainer beats this often
	silentAfter  = 3 * beatEvery   // the trainer that accepted is gone
	retryFirst   = 250 * time.Millisecond
	retryMost    = 3 * time.Second
)

// NoTrainerError says that nobody answered a call within its budget.
type NoTrainerError struct {
	Key    string
	Waited time.Duration // without accept or beat
	Last   *schema.Fault // what the last try came to; nil: nobody was there
}

func (e *NoTrainerError) Error() string {
	s := fmt.Sprintf("no trainer answered call %s within %s", e.Key, e.Waited.Round(time.Millisecond))
	if e.Last != nil {
		s += ": " + e.Last.Error()
	}
	return s
}

// Caller asks a trainer for the answers to one rollout's calls. It is the
// gate's model.
type Caller struct {
	w     *WorkerSide
	job   *Job // nil: nothing can hold or fence it
	shard string
	wait  time.Duration
}

// Caller returns the model for a job's calls: they wait while the job is held,
// and end when it is fenced.
func (j *Job) Caller() *Caller {
	c := j.w.Caller(j.Request)
	c.job = j
	return c
}

// Caller returns the model for the calls of a rollout that is nobody's job.
func (w *WorkerSide) Caller(r schema.Request) *Caller {
	return &Caller{w: w, shard: r.Shard, wait: time.Duration(r.Gate.WaitMS) * time.Millisecond}
}

// To is the same caller for another shard of the trainer.
func (c *Caller) To(shard string) *Caller {
	to := *c
	to.shard = shard
	return &to
}

// Complete asks until the call is answered or refused, always under the same
// key: a trainer that knows the key does not generate again. frames hears of
// everything in between, in order, and may end the call with an error.
//
// Errors are a *schema.Fault (the trainer refused), a *NoTrainerError (its
// budget is used up), a *TooLargeError, or the context's cause; in the last
// case the trainer is told to stop.
func (c *Caller) Complete(ctx context.Context, call schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
	key, err := schema.ParseKey(call.Key)
	if err != nil {
		return schema.Reply{}, err
	}
	call.RemainingMS = c.wait.Milliseconds()
	buf, _ := c.w.bodies.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	defer c.w.bodies.Put(buf)
	delta := call.Delta()
	body, err := schema.AppendCall((*buf)[:0], &delta)
	if err != nil {
		return schema.Reply{}, err
	}
	*buf = body
	a := &asking{call: &call, key: call.Key, subject: subjects.Call(key, c.shard), frames: frames}
	if a.body, err = c.w.pack(ctx, "a model call", subjects.BucketArtifact, body); err != nil {
		return schema.Reply{}, err
	}
	var reply schema.Reply
	err = c.ask(ctx, a, key, &reply)
	return reply, err
}

// Tool has the trainer run one of its tools, under the same rules as a model
// call: it is asked until it is answered, always under the same key.
func (c *Caller) Tool(ctx context.Context, call schema.ToolCall) (schema.ToolResult, error) {
	var result schema.ToolResult
	key, err := schema.ParseKey(call.Key)
	if err != nil {
		return result, err
	}
	body, err := schema.Encode(&call)
	if err == nil {
		err = checkSize(c.w.calls, "tool call "+call.Key, len(body))
	}
	if err != nil {
		return result, err
	}
	a := &asking{key: call.Key, subject: subjects.Tool(key, c.shard), body: Packed{data: body}, frames: func(schema.Frame) error { return nil }}
	err = c.ask(ctx, a, key, &result)
	return result, err
}

func (c *Caller) ask(ctx context.Context, a *asking, key schema.Key, into schema.Message) error {
	a.w, a.job, a.budget = c.w, c.job, c.wait
	a.inbox.open()
	c.w.mu.Lock()
	a.reply = subjects.GateInbox(key.Rollout.Trainer(), c.w.wid, c.w.instance, c.w.tokens.next())
	token := subjects.InboxToken(a.reply)
	c.w.inboxes[token] = &a.inbox
	c.w.mu.Unlock()
	defer func() {
		c.w.mu.Lock()
		delete(c.w.inboxes, token)
		c.w.mu.Unlock()
	}()
	err := a.run(ctx, into)
	if err == nil { // an answer that came while held counts only if the job is still its rollout's
		err = a.held(ctx)
	}
	if err != nil && a.heard && !isFault(err) && !a.fenced() {
		a.cancel()
	}
	return err
}

func isFault(err error) bool {
	f := (*schema.Fault)(nil)
	return errors.As(err, &f)
}

// asking is one call until it is settled.
type asking struct {
	w              *WorkerSide
	job            *Job
	call           *schema.Call // whole; nil for a tool call
	key            string
	subject, reply string
	body           Packed
	frames         func(schema.Frame) error
	inbox          mailbox
	budget         time.Duration

	rounds int    // times the call was published
	gen    string // the generation that is listened to
	genIn  int    // the last round in which it was heard
	deltas int    // of gen, in order
	heard  bool   // somebody has the call
	full   bool   // the whole conversation is sent
	spent  time.Duration
	last   *schema.Fault
}

// Outcomes of one round that lead to another.
var (
	errAbsent = errors.New("nobody there")
	errSilent = errors.New("no sign of life")
	errAgain  = errors.New("asked to come again")
	errFull   = errors.New("the trainer lost the base")
)

// held waits while the job is held.
func (a *asking) held(ctx context.Context) error {
	if a.job == nil {
		return nil
	}
	if err := a.job.hold.wait(ctx); err != nil {
		return err
	}
	if a.fenced() {
		return ErrFenced
	}
	return nil
}

func (a *asking) fenced() bool { return a.job != nil && a.job.fenced() }

func (a *asking) run(ctx context.Context, into schema.Message) error {
	for try := 0; ; try++ {
		if err := a.held(ctx); err != nil {
			return err
		}
		if a.body.stale() {
			if err := a.becomeFull(ctx); err != nil {
				return err
			}
		}
		wait, err := a.round(ctx, into)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errFull) && !a.full && a.call != nil:
			if err := a.becomeFull(ctx); err != nil {
				return err
			}
			continue
		case errors.Is(err, errAbsent), errors.Is(err, errSilent), errors.Is(err, errAgain), errors.Is(err, errFull):
		default:
			return err
		}
		if !errors.Is(err, errAgain) {
			a.last = nil
		}
		if err := a.frames(schema.Frame{Kind: schema.FrameAbsent, Gen: a.gen, Fault: a.last}); err != nil {
			return err
		}
		wait = max(wait, backoff(try))
		if a.spent+wait > a.budget {
			wait = max(a.budget-a.spent, 0)
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		if a.spent += wait; a.spent >= a.budget {
			return &NoTrainerError{Key: a.key, Waited: a.spent, Last: a.last}
		}
	}
}

// becomeFull sends the whole conversation from now on.
func (a *asking) becomeFull(ctx context.Context) error {
	body, err := schema.Encode(a.call)
	if err == nil {
		a.body, err = a.w.pack(ctx, "a model call", subjects.BucketArtifact, body)
	}
	a.full = err == nil
	return err
}

// round publishes the call once and listens until it is settled or silent.
// wait is how long the trainer asks to stay away.
func (a *asking) round(ctx context.Context, into schema.Message) (wait time.Duration, err error) {
	start := time.Now()
	a.rounds++
	if err := a.publish(); err != nil {
		a.w.log.Debug().Err(err).Str("call", a.key).Msg("a call was not published")
		return 0, errAbsent
	}
	accepted := false
	due := start.Add(acceptWithin)
	a.inbox.wakeAt(due)
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-a.inbox.ready:
			m, next := a.inbox.take()
			if m == nil {
				switch {
				case !time.Now().After(due):
					continue
				case accepted:
					return 0, errSilent
				}
				a.spent += time.Since(start)
				return 0, errAbsent
			}
			if m.Header.Get("Status") == "503" && len(m.Data) == 0 {
				if accepted { // of an earlier round
					continue
				}
				return 0, errAbsent
			}
			done, w, err := a.frame(ctx, m, next, into)
			if done || err != nil {
				return w, err
			}
			if !accepted {
				a.spent += time.Since(start)
				accepted, a.heard = true, true
			}
			due = time.Now().Add(silentAfter)
			a.inbox.wakeAt(due)
		}
	}
}

func (a *asking) publish() error {
	m := &nats.Msg{Subject: a.subject, Reply: a.reply, Data: a.body.data}
	if a.gen != "" {
		m.Header = nats.Header{subjects.HeaderGen: {a.gen}, subjects.HeaderResume: {strconv.Itoa(a.deltas)}}
	}
	for name, value := range a.body.header {
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[name] = value
	}
	return a.w.calls.PublishMsg(m)
}

func (a *asking) cancel() {
	err := a.w.calls.PublishMsg(&nats.Msg{Subject: a.subject, Header: nats.Header{subjects.HeaderKind: {subjects.KindCancel}}})
	if err != nil {
		a.w.log.Debug().Err(err).Str("call", a.key).Msg("the trainer was not told to stop")
	}
}

// frame handles one frame; next is the one behind it, or nil. done: the answer
// is complete.
func (a *asking) frame(ctx context.Context, m, next *nats.Msg, into schema.Message) (done bool, wait time.Duration, err error) {
	kind, gen := schema.FrameKind(m.Header.Get(subjects.HeaderKind)), m.Header.Get(subjects.HeaderGen)
	if gen != "" && gen != a.gen {
		// The first generation is listened to. Another one is taken up only
		// when the trainer answers a call that was asked again with it, which
		// it does from its first delta.
		if a.gen != "" && (a.rounds == a.genIn || !restarts(m, kind)) {
			return false, 0, nil
		}
		a.gen, a.deltas = gen, 0
	}
	a.genIn = a.rounds
	body, err := a.w.unpack(ctx, subjects.BucketTasks, m.Header, m.Data)
	if err != nil {
		a.w.log.Warn().Err(err).Str("call", a.key).Msg("a frame cannot be unpacked; it is asked for again")
		return false, 0, errSilent
	}
	switch kind {
	case schema.FrameAccept, schema.FrameBeat:
		return false, 0, a.frames(schema.Frame{Kind: kind, Gen: gen, Held: m.Header.Get(subjects.HeaderHeld) == "1"})
	case schema.FrameDelta:
		return false, 0, a.delta(m, body, next)
	case schema.FrameFinal:
		if n, _ := strconv.Atoi(m.Header.Get(subjects.HeaderSeq)); n > a.deltas && a.deltas > 0 {
			return false, 0, errSilent // deltas were lost on the way: ask for the rest
		}
		if err := schema.Decode(body, into); err != nil {
			return false, 0, schema.Faultf("call", schema.CodeInvalid, schema.WhoTrainer, "the trainer's reply: %v", err)
		}
		return true, 0, a.frames(schema.Frame{Kind: kind, Gen: gen})
	case schema.FrameFault:
		return a.fault(body)
	case schema.FrameNeedFull:
		return false, 0, errFull
	default:
		return false, 0, nil // of a later version
	}
}

// restarts reports whether a frame opens a generation.
func restarts(m *nats.Msg, kind schema.FrameKind) bool {
	switch kind {
	case schema.FrameAccept, schema.FrameFinal, schema.FrameFault:
		return true
	case schema.FrameDelta:
		return m.Header.Get(subjects.HeaderSeq) == "0"
	default:
		return false
	}
}

func (a *asking) delta(m *nats.Msg, body []byte, next *nats.Msg) error {
	seq, err := strconv.Atoi(m.Header.Get(subjects.HeaderSeq))
	switch {
	case err != nil || seq < a.deltas:
		return nil // held already
	case seq > a.deltas:
		return errSilent // a gap: ask again with Rl-Resume
	}
	var d schema.Delta
	if err := schema.Decode(body, &d); err != nil {
		return schema.Faultf("call", schema.CodeInvalid, schema.WhoTrainer, "a delta of the trainer's: %v", err)
	}
	a.deltas++
	return a.frames(schema.Frame{Kind: schema.FrameDelta, Gen: a.gen, Delta: &d, More: next != nil && a.follows(next)})
}

// follows reports whether a frame is the next delta.
func (a *asking) follows(m *nats.Msg) bool {
	return m.Header.Get(subjects.HeaderKind) == string(schema.FrameDelta) && m.Header.Get(subjects.HeaderGen) == a.gen &&
		m.Header.Get(subjects.HeaderSeq) == strconv.Itoa(a.deltas)
}

func (a *asking) fault(body []byte) (bool, time.Duration, error) {
	f := &schema.Fault{}
	if err := schema.Decode(body, f); err != nil {
		f = schema.Faultf("call", schema.CodeInvalid, schema.WhoTrainer, "the trainer's fault: %v", err)
		f.Status = 500
	}
	if f.Who == "" {
		f.Who = schema.WhoTrainer
	}
	if !schema.RetryableStatus(f.Status) {
		return false, 0, f
	}
	a.last, a.gen, a.deltas = f, "", 0
	return false, time.Duration(f.RetryAfterMS) * time.Millisecond, errAgain
}

// backoff grows to retryMost, with jitter.
func backoff(try int) time.Duration {
	d := min(retryFirst<<min(try, 5), retryMost)
	return d/2 + mathrand.N(d/2+1)
}
