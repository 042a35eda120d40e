package modelcall

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Operate runs one operation of a trainer that verifies. The context ends when
// the result is no longer wanted. Its error goes to the trainer: a *schema.Fault
// unchanged.
type Operate func(ctx context.Context, number int, op *schema.Operation) (schema.OperationResult, error)

// Verify asks the trainer to verify, and runs its operations until it answers. It
// retries and fails as Complete does. When it returns, no operation runs.
func (c *Caller) Verify(ctx context.Context, v schema.Verification, frames func(schema.Frame) error, operate Operate) (schema.Verdict, error) {
	var verdict schema.Verdict
	key, err := schema.ParseKey(v.Key)
	if err != nil {
		return verdict, err
	}
	body, err := schema.Encode(&v)
	if err != nil {
		return verdict, err
	}
	a := &callAttempt{key: v.Key, subject: subjects.Verification(key, c.shard), frames: frames}
	if a.body, err = c.client.pack(ctx, "a verification", subjects.ArtifactsBucket(key.Rollout.Trainer()), body); err != nil {
		return verdict, asFault("verify", err)
	}
	a.operations = &operations{a: a, operate: operate}
	defer a.operations.close()
	err = c.ask(ctx, a, key, &answered{}, &verdict)
	return verdict, asFault("verify", err)
}

// operations runs the operations of one verification, one after the other. Their
// numbers grow within a generation. A repeated number gets the same answer, and a
// higher one ends the operation before it.
type operations struct {
	a       *callAttempt
	operate Operate

	mu      sync.Mutex
	gen     string
	number  int                // of the newest operation
	cancel  context.CancelFunc // ends it; nil: there was none
	ended   chan struct{}      // is closed at its end
	reply   *nats.Msg          // its answer; nil: it runs
	waiting *nats.Msg          // the request for it that has no answer yet; nil: none
	closed  bool
}

const (
	// maxOperations is the number of operations of one generation.
	maxOperations = 10_000
	// operationBeat is the time after which a worker tells that an operation still
	// runs. The trainer then requests it again.
	operationBeat = 5 * time.Second
)

// operation handles a request for an operation.
func (a *callAttempt) operation(ctx context.Context, m *nats.Msg) error {
	gen := m.Header.Get(subjects.HeaderGen)
	switch {
	case a.operations == nil || m.Reply == "":
		return nil
	case gen == "" || gen != a.gen:
		if a.gen != "" && a.rounds == a.genIn {
			a.client.refuseEndedOperation(m, "of another generation than "+a.gen)
		}
		return nil // the accept of its generation may come: the trainer repeats it
	}
	a.genIn = a.rounds
	a.operations.receive(ctx, gen, m)
	return a.frames(schema.Frame{Kind: schema.FrameBeat, Gen: gen})
}

// refuseEndedOperation refuses an operation after the end of its verification or
// generation.
func (c *Client) refuseEndedOperation(m *nats.Msg, why string) {
	c.refuseOperation(m, http.StatusGone, schema.CodeOver, "the operation is "+why)
}

func (c *Client) refuseOperation(m *nats.Msg, status int, code, text string) {
	f := schema.Faultf("verify", code, schema.WhoTrainer, "%s", text)
	f.Status = status
	c.replyOperation(m, c.faultReply(f))
}

func (c *Client) faultReply(f *schema.Fault) *nats.Msg {
	body, err := schema.Encode(f)
	if err != nil {
		c.log.Warn().Err(err).Msg("a fault of an operation cannot be encoded")
	}
	return &nats.Msg{Header: nats.Header{subjects.HeaderKind: {string(schema.FrameFault)}}, Data: body}
}

func (c *Client) replyOperation(m, reply *nats.Msg) {
	if err := m.RespondMsg(&nats.Msg{Header: reply.Header, Data: reply.Data}); err != nil {
		c.log.Debug().Err(err).Str("inbox", m.Subject).Msg("an operation was not answered; the trainer repeats it")
	}
}

// receive starts an operation, or answers a repeated request for one.
func (o *operations) receive(ctx context.Context, gen string, m *nats.Msg) {
	n, err := schema.ParseCount(subjects.HeaderSeq, m.Header.Get(subjects.HeaderSeq))
	if err != nil {
		o.a.client.refuseOperation(m, http.StatusBadRequest, schema.CodeInvalid, err.Error())
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if gen != o.gen {
		o.gen, o.number = gen, 0
	}
	switch {
	case o.closed:
	case n < o.number:
		o.a.client.refuseEndedOperation(m, "older than the newest one")
	case n > maxOperations:
		o.a.client.refuseOperation(m, http.StatusTooManyRequests, schema.CodeCallCap, "a verification has at most 10000 operations")
	case n == o.number && o.reply != nil:
		o.a.client.replyOperation(m, o.reply)
	case n == o.number:
		o.waiting = m
	default:
		before := o.ended
		if o.cancel != nil {
			o.cancel()
		}
		if o.waiting != nil {
			o.a.client.refuseEndedOperation(o.waiting, "older than the newest one")
		}
		o.number, o.reply, o.waiting, o.ended = n, nil, m, make(chan struct{})
		ctx, o.cancel = context.WithCancel(ctx)
		go o.run(ctx, m, gen, n, before, o.ended)
	}
}

// close ends the running operation.
func (o *operations) close() {
	o.mu.Lock()
	o.closed = true
	cancel, ended := o.cancel, o.ended
	o.mu.Unlock()
	if cancel != nil {
		cancel()
		<-ended
	}
}

// run runs one operation after the one before has ended.
func (o *operations) run(ctx context.Context, m *nats.Msg, gen string, n int, before, ended chan struct{}) {
	defer close(ended)
	if before != nil {
		<-before
	}
	done := make(chan *nats.Msg, 1)
	go func() { done <- o.answer(ctx, m, n) }()
	tick := time.NewTicker(operationBeat)
	defer tick.Stop()
	for {
		select {
		case reply := <-done:
			o.finish(gen, n, reply)
			return
		case <-tick.C:
			o.beat(gen, n)
		}
	}
}

// beat answers the waiting request for an operation that still runs.
func (o *operations) beat(gen string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gen == gen && o.number == n && o.waiting != nil && o.a.fenced() == nil {
		o.a.client.replyOperation(o.waiting, &nats.Msg{Header: nats.Header{subjects.HeaderKind: {string(schema.FrameBeat)}}})
		o.waiting = nil
	}
}

// finish stores the answer of an operation and sends it.
func (o *operations) finish(gen string, n int, reply *nats.Msg) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gen != gen || o.number != n {
		return
	}
	o.reply = reply
	if o.waiting != nil && o.a.fenced() == nil {
		o.a.client.replyOperation(o.waiting, reply)
		o.waiting = nil
	}
}

// answer runs an operation and returns its answer.
func (o *operations) answer(ctx context.Context, m *nats.Msg, n int) *nats.Msg {
	result, err := o.result(ctx, m, n)
	if err == nil {
		var body []byte
		if body, err = schema.Encode(&result); err == nil {
			var p Packed
			if p, err = o.a.client.pack(ctx, "the result of an operation", subjects.ArtifactsBucket(o.a.trainer), body); err == nil {
				reply := &nats.Msg{Header: nats.Header{subjects.HeaderKind: {string(schema.FrameFinal)}}, Data: p.data}
				for name, value := range p.header {
					reply.Header[name] = value
				}
				return reply
			}
		}
	}
	var f *schema.Fault
	var bad *schema.InvalidError
	var full *broker.FullError
	switch {
	case errors.As(err, &f):
	case errors.As(err, &bad):
		f = schema.Faultf("verify", schema.CodeInvalid, schema.WhoTrainer, "%v", err)
		f.Status = http.StatusBadRequest
	case errors.As(err, &full):
		f = schema.Faultf("verify", schema.CodeFull, schema.WhoTrainer, "%v", err)
		f.Status = http.StatusInsufficientStorage
	default:
		f = schema.Faultf("verify", schema.CodeInternal, schema.WhoWorker, "%v", err)
		f.Status = http.StatusInternalServerError
	}
	return o.a.client.faultReply(f)
}

func (o *operations) result(ctx context.Context, m *nats.Msg, n int) (r schema.OperationResult, err error) {
	body, err := o.a.client.unpack(ctx, subjects.TasksBucket(o.a.trainer), m.Header, m.Data)
	if err != nil {
		return r, err
	}
	var op schema.Operation
	if err := wire.Decode(body, &op); err != nil {
		var shape *schema.ShapeError
		if errors.As(err, &shape) {
			err = &schema.InvalidError{Field: "body", Value: "", Want: shape.Error()}
		}
		return r, err
	}
	if err := o.a.awaitLease(ctx); err != nil {
		return r, err
	}
	r, err = o.operate(ctx, n, &op)
	if err == nil {
		err = o.a.awaitLease(ctx)
	}
	return r, err
}
