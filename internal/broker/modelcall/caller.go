package modelcall

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Durations of a call.
const (
	acceptWithin = 2 * time.Second // without a frame for so long, the trainer is absent
	beatEvery    = 5 * time.Second // interval of a trainer's beats
	silentAfter  = 3 * beatEvery   // without a frame for so long, a trainer that accepted is gone
)

// Owner tells whether this worker still owns the rollout. A queue.Job is one.
type Owner interface {
	// Await blocks while it is unknown whether the worker still owns the rollout. Its
	// error is that of Fenced, or the context's cause.
	Await(ctx context.Context) error
	// Fenced returns an error if the rollout is another attempt's; otherwise nil.
	Fenced() error
}

// Caller sends the calls of one rollout to its trainer. It implements gate.Model.
type Caller struct {
	client *Client
	owner  Owner // nil: the calls are never suspended or fenced
	shard  string
	wait   time.Duration

	answered, answeredTools *answered
}

// Caller returns the Caller of a rollout. Its calls wait while the owner is suspended,
// and end when it is fenced. Without an owner they do neither.
func (c *Client) Caller(r schema.Request, owner Owner) *Caller {
	return &Caller{client: c, owner: owner, shard: r.Shard, wait: time.Duration(r.Gate.WaitMS) * time.Millisecond, answered: &answered{}, answeredTools: &answered{}}
}

// To returns a copy of the caller for another shard of the trainer.
func (c *Caller) To(shard string) *Caller {
	to := *c
	to.shard, to.answered, to.answeredTools = shard, &answered{}, &answered{} // another process answers it
	return &to
}

// Complete publishes the call until it is answered or refused, always under the
// same key: a trainer that knows the key does not generate again. frames gets the
// accepts, beats, deltas and finals in order, and FrameAbsent after each round without
// an answer. The last frame is the final with the answer, if Complete returns no error.
// An error that frames returns ends the call, except a fault with schema.CodeBadAnswer:
// it refuses the answer, and the trainer is asked for another one. maxRefused refusals
// in a row end the call. The message carries the trace of the context.
//
// Errors are a *schema.Fault (the trainer refused the call, the call's budget is used
// up, or the call is too large), an error about the key, an error of encoding or
// storing the call, the error of frames, that of Owner.Fenced, or the context's cause.
// After any other error than a fault of the trainer or that of Fenced, the trainer gets a
// cancel: it may have the call, also if no frame came.
func (c *Caller) Complete(ctx context.Context, call schema.Call, frames func(schema.Frame) error) error {
	key, err := schema.ParseKey(call.Key)
	if err != nil {
		return err
	}
	call.RemainingMS = c.wait.Milliseconds()
	buf, _ := c.client.bodies.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	defer c.client.bodies.Put(buf)
	delta := call.Delta()
	body, err := schema.Append((*buf)[:0], &delta)
	if err != nil {
		return err
	}
	*buf = body
	a := &callAttempt{call: &call, key: call.Key, subject: subjects.Call(key, c.shard), frames: frames}
	if a.body, err = c.client.pack(ctx, "a model call", subjects.ArtifactsBucket(key.Rollout.Trainer()), body); err == nil {
		err = c.ask(ctx, a, key, c.answered, &schema.Reply{})
	}
	return asFault("call", err)
}

// Tool asks the trainer to run one of its tools. It retries and fails as Complete
// does.
func (c *Caller) Tool(ctx context.Context, call schema.ToolCall) (schema.ToolResult, error) {
	var result schema.ToolResult
	key, err := schema.ParseKey(call.Key)
	if err != nil {
		return result, err
	}
	body, err := schema.Encode(&call)
	if err == nil {
		err = c.client.store.CheckSize("tool call "+call.Key, len(body))
	}
	if err == nil {
		a := &callAttempt{key: call.Key, subject: subjects.Tool(key, c.shard), body: Packed{data: body}, frames: func(schema.Frame) error { return nil }}
		err = c.ask(ctx, a, key, c.answeredTools, &result)
	}
	return result, asFault("tool", err)
}

// ask runs a call to its end. done has the numbers of the answered earlier calls of the same
// kind. The call carries them, so that the trainer can forget these answers.
func (c *Caller) ask(ctx context.Context, a *callAttempt, key schema.Key, done *answered, into schema.Message) error {
	a.client, a.owner, a.trainer, a.budget = c.client, c.owner, key.Rollout.Trainer(), c.wait
	a.trace = traces.SpanContext(ctx)
	a.inbox.open()
	a.answered = done.drain(key.Attempt)
	c.client.mu.Lock()
	a.reply = subjects.GateInbox(key.Rollout.Trainer(), c.client.worker, c.client.instance, c.client.tokens.next())
	token := subjects.InboxToken(a.reply)
	c.client.inboxes[token] = &a.inbox
	c.client.mu.Unlock()
	defer func() {
		c.client.mu.Lock()
		delete(c.client.inboxes, token)
		c.client.mu.Unlock()
	}()
	err := a.run(ctx, into)
	if err == nil {
		done.add(key.Attempt, key.Call)
	} else {
		done.add(key.Attempt, a.answered...)
	}
	if err == nil { // the owner may be suspended: the answer is valid only if it still owns the rollout
		err = a.awaitLease(ctx)
	}
	if err != nil && a.rounds > 0 && !isFault(err) && a.fenced() == nil {
		a.cancel()
	}
	return err
}

// onFrame passes a frame to the call that waits at its inbox, see ask.
func (c *Client) onFrame(m *nats.Msg) {
	c.mu.Lock()
	inbox := c.inboxes[subjects.InboxToken(m.Subject)]
	c.mu.Unlock()
	if inbox == nil { // a late frame of a finished call
		if m.Reply != "" && m.Header.Get(subjects.HeaderKind) == string(schema.FrameOperation) {
			c.refuseEndedOperation(m, "of a verification that has ended")
		}
		return
	}
	if !inbox.put(m) {
		c.log.Warn().Str("subject", m.Subject).Msg("a frame was dropped, its call is read too slowly")
	}
}

func isFault(err error) bool {
	f := (*schema.Fault)(nil)
	return errors.As(err, &f)
}

// callAttempt is one call in progress.
type callAttempt struct {
	client         *Client
	owner          Owner // nil: none
	trainer        string
	call           *schema.Call // whole; nil for a tool call or a verification
	key            string
	subject, reply string
	body           Packed
	trace          trace.SpanContext // of the call
	frames         func(schema.Frame) error
	inbox          mailbox
	budget         time.Duration

	answered []int // numbers of earlier calls; the worker has their answers

	rounds int    // number of times the call was published
	gen    string // name of the accepted generation
	genIn  int    // the last round with a frame that was not of another generation
	deltas int    // number of deltas of gen so far, without a gap
	full   bool   // becomeFull has replaced body
	spent  time.Duration
	last   *schema.Fault

	operations *operations // of a verification; nil: the call has none

	refused []string      // generations that were refused
	refusal *schema.Fault // the fault of the newest refused answer
	bad     int           // refused answers in a row
}

// Errors of a round after which the call is sent again.
var (
	errAbsent = errors.New("no trainer answered")
	errSilent = errors.New("no sign of life")
	errAgain  = errors.New("asked to come again")
	errFull   = errors.New("the trainer lost the base")
)

// awaitLease waits while the rollout's owner is suspended. It returns an error if the
// owner is fenced.
func (a *callAttempt) awaitLease(ctx context.Context) error {
	if a.owner == nil {
		return nil
	}
	return a.owner.Await(ctx)
}

func (a *callAttempt) fenced() error {
	if a.owner == nil {
		return nil
	}
	return a.owner.Fenced()
}

func (a *callAttempt) run(ctx context.Context, into schema.Message) error {
	for try := 0; ; try++ {
		if err := a.awaitLease(ctx); err != nil {
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
		if !errors.Is(err, errAgain) && !errors.Is(err, errGap) {
			a.last = nil
		}
		if a.last == nil || a.last != a.refusal {
			a.bad = 0
		}
		if err := a.frames(schema.Frame{Kind: schema.FrameAbsent, Gen: a.gen, Fault: a.last}); err != nil {
			return err
		}
		if a.bad >= maxRefused {
			return a.last
		}
		wait = max(wait, wire.Backoff(try))
		if a.spent+wait > a.budget {
			wait = max(a.budget-a.spent, 0)
		}
		if err := wire.Pause(ctx, wait); err != nil {
			return err
		}
		if a.spent += wait; a.spent >= a.budget {
			return &noTrainerError{key: a.key, waited: a.spent, last: a.last}
		}
	}
}

// becomeFull replaces the body by the whole conversation, for all later rounds.
func (a *callAttempt) becomeFull(ctx context.Context) error {
	body, err := schema.Encode(a.call)
	if err == nil {
		a.body, err = a.client.pack(ctx, "a model call", subjects.ArtifactsBucket(a.trainer), body)
	}
	a.full = err == nil
	return err
}

// round publishes the call once and reads frames until the call is answered or
// the trainer is silent. wait is the delay before the next round that the
// trainer asked for.
func (a *callAttempt) round(ctx context.Context, into schema.Message) (wait time.Duration, err error) {
	start := time.Now()
	a.rounds++
	if err := a.publish(); err != nil {
		a.client.log.Debug().Err(err).Str("call", a.key).Msg("a call was not published")
		return 0, errAbsent
	}
	accepted, refused := false, false
	due := start.Add(acceptWithin)
	a.inbox.wakeAt(due)
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-a.inbox.ready:
		}
		m, next := a.inbox.read()
		switch {
		case m == nil && !time.Now().After(due):
			continue
		case m == nil && accepted:
			return 0, errSilent
		case m == nil:
			a.spent += time.Since(start)
			if !refused {
				return 0, errAbsent
			}
			a.last = a.refusal // the trainer repeats an answer that was refused
			a.bad++
			return 0, errAgain
		case a.isRefused(m):
			refused = true
			continue
		case noResponders(m) && accepted: // it is about an earlier round
			continue
		case noResponders(m):
			return 0, errAbsent
		}
		done, wait, err := a.frame(ctx, m, next, into)
		if done || err != nil {
			return wait, err
		}
		if !accepted {
			a.spent += time.Since(start)
			accepted = true
		}
		due = time.Now().Add(silentAfter)
		a.inbox.wakeAt(due)
	}
}

// noResponders reports whether the server says that the call has no subscriber.
func noResponders(m *nats.Msg) bool { return m.Header.Get("Status") == "503" && len(m.Data) == 0 }

func (a *callAttempt) publish() error {
	m := &nats.Msg{Subject: a.subject, Reply: a.reply, Data: a.body.data, Header: nats.Header{}}
	if a.gen != "" {
		m.Header.Set(subjects.HeaderGen, a.gen)
		m.Header.Set(subjects.HeaderResume, strconv.Itoa(a.deltas))
	}
	if len(a.answered) > 0 {
		m.Header.Set(subjects.HeaderSettled, answeredHeader(a.answered))
	}
	maps.Copy(m.Header, a.body.header)
	traces.Put(m.Header, a.trace)
	return a.client.conn.PublishMsg(m)
}

func (a *callAttempt) cancel() {
	err := a.client.conn.PublishMsg(&nats.Msg{Subject: a.subject, Header: nats.Header{subjects.HeaderKind: {subjects.KindCancel}}})
	if err != nil {
		a.client.log.Debug().Err(err).Str("call", a.key).Msg("a cancel was not sent to the trainer")
	}
}

// frame handles one frame. next is the frame after it if that has arrived, or
// nil. done reports whether the answer is complete.
func (a *callAttempt) frame(ctx context.Context, m, next *nats.Msg, into schema.Message) (done bool, wait time.Duration, err error) {
	kind, gen := schema.FrameKind(m.Header.Get(subjects.HeaderKind)), m.Header.Get(subjects.HeaderGen)
	if kind == schema.FrameOperation {
		return false, 0, a.operation(ctx, m)
	}
	if ours, err := a.belongs(m, kind, gen); err != nil || !ours {
		return false, 0, err
	}
	body, err := a.unpack(ctx, m, gen)
	if err != nil {
		return false, 0, err
	}
	switch kind {
	case schema.FrameAccept, schema.FrameBeat:
		return false, 0, a.frames(schema.Frame{Kind: kind, Gen: gen, Held: m.Header.Get(subjects.HeaderHeld) == "1"})
	case schema.FrameDelta:
		return false, 0, a.delta(m, body, next)
	case schema.FrameFinal:
		err := a.final(m, body, into)
		return err == nil, 0, err
	case schema.FrameFault:
		wait, err := a.fault(body)
		return false, wait, err
	case schema.FrameNeedFull:
		return false, 0, errFull
	default:
		return false, 0, nil // a kind of frame of a later version
	}
}

// belongs reports whether a frame belongs to the generation of the call. The call keeps to
// one generation. It changes to another only if this round has no frame of the old one
// yet, and only at a frame that begins a generation, see restarts.
func (a *callAttempt) belongs(m *nats.Msg, kind schema.FrameKind, gen string) (bool, error) {
	switch {
	case gen == "" && needsGen(kind):
		return false, a.refuse("", &schema.InvalidError{Field: subjects.HeaderGen, Value: "", Want: "want the name of the generation"})
	case gen == "" || gen == a.gen:
	case a.gen != "" && (a.rounds == a.genIn || !restarts(m, kind)):
		return false, nil
	default:
		if err := schema.CheckToken(subjects.HeaderGen, gen); err != nil {
			return false, a.refuse(gen, err)
		}
		a.gen, a.deltas = gen, 0
	}
	a.genIn = a.rounds
	return true, nil
}

// unpack returns the body of a frame. An error ends the round: the frame is refused, or
// asked for again.
func (a *callAttempt) unpack(ctx context.Context, m *nats.Msg, gen string) ([]byte, error) {
	body, err := a.client.unpack(ctx, subjects.TasksBucket(a.trainer), m.Header, m.Data)
	var invalid *schema.InvalidError
	switch {
	case errors.As(err, &invalid):
		return nil, a.refuse(gen, err)
	case err != nil:
		a.client.log.Warn().Err(err).Str("call", a.key).Msg("a frame cannot be unpacked; it is asked for again")
		return nil, errSilent
	}
	return body, nil
}

// final takes the whole answer. Without an error the call is answered.
func (a *callAttempt) final(m *nats.Msg, body []byte, into schema.Message) error {
	n, err := a.checkSeq(schema.FrameFinal, m.Header)
	if err != nil {
		return a.refuse(a.gen, err)
	}
	if n > a.deltas && a.deltas > 0 {
		return a.gap(n)
	}
	if err := wire.Decode(body, into); err != nil {
		return a.refuse(a.gen, err)
	}
	reply, _ := into.(*schema.Reply)
	return a.pass(schema.Frame{Kind: schema.FrameFinal, Gen: a.gen, Reply: reply})
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

func (a *callAttempt) delta(m *nats.Msg, body []byte, next *nats.Msg) error {
	seq, err := a.checkSeq(schema.FrameDelta, m.Header)
	switch {
	case err != nil:
		return a.refuse(a.gen, err)
	case seq < a.deltas:
		return nil // a repeated delta
	case seq > a.deltas:
		return a.gap(seq)
	}
	var d schema.Delta
	if err := wire.Decode(body, &d); err != nil {
		return a.refuse(a.gen, err)
	}
	a.deltas++
	return a.pass(schema.Frame{Kind: schema.FrameDelta, Gen: a.gen, Delta: &d, More: next != nil && a.follows(next)})
}

// follows reports whether a frame is the next delta.
func (a *callAttempt) follows(m *nats.Msg) bool {
	return m.Header.Get(subjects.HeaderKind) == string(schema.FrameDelta) && m.Header.Get(subjects.HeaderGen) == a.gen &&
		m.Header.Get(subjects.HeaderSeq) == strconv.Itoa(a.deltas)
}

// fault returns the fault of the trainer, or errAgain and the delay that the trainer asks
// for.
func (a *callAttempt) fault(body []byte) (wait time.Duration, err error) {
	f := &schema.Fault{}
	if err := schema.Decode(body, f); err != nil {
		return 0, a.refuse(a.gen, err)
	}
	if f.Who == "" {
		f.Who = schema.WhoTrainer
	}
	if f.Status == 0 {
		f.Status = http.StatusInternalServerError
	}
	if !schema.RetryableStatus(f.Status) {
		return 0, f
	}
	a.last, a.gen, a.deltas = f, "", 0
	return time.Duration(f.RetryAfterMS) * time.Millisecond, errAgain
}

// pass passes a frame of an answer to the gate, which may refuse the answer.
func (a *callAttempt) pass(f schema.Frame) error {
	err := a.frames(f)
	var fault *schema.Fault
	if errors.As(err, &fault) && fault.Code == schema.CodeBadAnswer {
		return a.refuse(f.Gen, fault)
	}
	return err
}
