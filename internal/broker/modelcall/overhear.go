package modelcall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Bounds of Overhear.
const (
	maxOverheard = 1024 // open calls of a rollout
	overheardLag = 1024 // messages that wait; later ones are lost
)

// Overhear tells of a rollout all that its trainer's credential can hear, from now on until
// the context ends: phases, waits, model calls to the trainer, and the answers that other
// processes of the trainer give. Tools, verifications and output are not among them. It
// answers nothing, and changes nothing for the worker, except that a call without a process
// to answer it is noticed after 2 s and not at once. begun is called when it listens. event
// and piece are called from the same goroutine. Messages may be lost.
func (s *Server) Overhear(ctx context.Context, id schema.ID, begun func(), event func(*schema.Event), piece func(attempt, call int, d *schema.Delta)) error {
	if id.Trainer() != s.tid {
		return &schema.InvalidError{Field: "id", Value: string(id), Want: "want a rollout of trainer " + s.tid}
	}
	o := &overhearing{s: s, id: id, in: make(chan *nats.Msg, overheardLag), calls: map[string]*overheardCall{}, event: event, piece: piece}
	o.heard.open()
	ctx, stop := context.WithCancel(ctx)
	var pumping sync.WaitGroup
	defer pumping.Wait()
	defer stop()
	defer o.close()
	pumping.Go(func() { o.pump(ctx) })
	for _, subject := range []string{subjects.TrainerEvents(s.tid), subjects.CallsOfRollout(id)} {
		if _, err := o.listen(subject); err != nil {
			return err
		}
	}
	if err := o.move(ctx); err != nil {
		return err
	}
	if err := s.b.CallConn().FlushTimeout(wire.OpTimeout); err != nil {
		return fmt.Errorf("listen to %s: %w", id, err)
	}
	begun()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.heard.ready:
			m, _ := o.heard.read()
			if m == nil {
				continue
			}
			if err := o.take(ctx, m); err != nil && ctx.Err() == nil { // the next call names its worker
				s.b.Log().Debug().Err(err).Str("rollout", string(id)).Msg("answers are not heard at this moment")
			}
		}
	}
}

type overhearing struct {
	s       *Server
	id      schema.ID
	in      chan *nats.Msg // of all subscriptions, so that their order stays
	heard   mailbox        // the messages of in, within its bound in bytes
	subs    []*nats.Subscription
	frames  *nats.Subscription // of all rollouts of the trainer at worker; nil: no worker is known
	worker  string
	attempt int
	calls   map[string]*overheardCall // by the token of their inboxes

	event func(*schema.Event)
	piece func(attempt, call int, d *schema.Delta)
}

type overheardCall struct {
	key   schema.Key
	at    time.Time
	ended bool
}

// pump empties in until the context ends: a message waits long while the body of another
// one is fetched.
func (o *overhearing) pump(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-o.in:
			o.heard.put(m) // without room it is lost
		}
	}
}

func (o *overhearing) listen(subject string) (*nats.Subscription, error) {
	sub, err := o.s.b.CallConn().ChanSubscribe(subject, o.in)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	o.subs = append(o.subs, sub)
	return sub, nil
}

func (o *overhearing) close() {
	for _, sub := range o.subs {
		_ = sub.Unsubscribe() // of a closed connection it is gone
	}
}

// move listens to the worker that runs the rollout now.
func (o *overhearing) move(ctx context.Context) error {
	state, err := o.s.b.Records.State(ctx, o.id)
	if errors.Is(err, broker.ErrNotFound) || err == nil && state.Worker == "" {
		return nil // it waits in the queue
	}
	if err != nil {
		return err
	}
	return o.hear(state.Worker)
}

func (o *overhearing) hear(worker string) error {
	if worker == o.worker {
		return nil
	}
	if o.frames != nil {
		_ = o.frames.Unsubscribe()
	}
	var err error
	o.frames, err = o.listen(subjects.GateInboxesOf(o.s.tid, worker))
	if err == nil {
		o.worker = worker
	}
	return err
}

// begin forgets the calls of earlier attempts.
func (o *overhearing) begin(ctx context.Context, attempt int) error {
	if attempt <= o.attempt {
		return nil
	}
	o.attempt = attempt
	clear(o.calls)
	return o.move(ctx)
}

func (o *overhearing) take(ctx context.Context, m *nats.Msg) error {
	if m.Subject == subjects.TrainerEvents(o.s.tid) {
		var e schema.Event
		if schema.Decode(m.Data, &e) != nil || e.Rollout != o.id {
			return nil
		}
		o.event(&e)
		return o.begin(ctx, e.Attempt)
	}
	if key, _, ok := subjects.ParseCall(m.Subject); ok {
		return o.call(ctx, key, m)
	}
	if c := o.calls[subjects.InboxToken(m.Subject)]; c != nil && !c.ended {
		o.frame(ctx, c, m)
	}
	return nil
}

// call tells that a call begins. A worker repeats it until it is answered.
func (o *overhearing) call(ctx context.Context, key schema.Key, m *nats.Msg) error {
	switch m.Header.Get(subjects.HeaderKind) {
	case subjects.KindCancel:
		for _, c := range o.calls {
			if c.key == key && !c.ended {
				o.end(c, &schema.LLMEvent{Note: "the call was cancelled"})
			}
		}
		return nil
	case subjects.KindReject: // another answer follows
		for _, c := range o.calls {
			if c.key == key {
				c.ended = false
				o.tell(key, &schema.LLMEvent{Number: key.Call, Note: o.s.reject(ctx, m).Message})
			}
		}
		return nil
	case "":
	default:
		return nil
	}
	if !subjects.IsGateInbox(m.Reply, o.s.tid) || key.Attempt < o.attempt {
		return nil
	}
	err := errors.Join(o.begin(ctx, key.Attempt), o.hear(subjects.GateWorker(m.Reply)))
	token := subjects.InboxToken(m.Reply)
	if o.calls[token] != nil {
		return err
	}
	if len(o.calls) >= maxOverheard {
		maps.DeleteFunc(o.calls, func(_ string, c *overheardCall) bool { return c.ended })
	}
	if len(o.calls) >= maxOverheard {
		return err
	}
	o.calls[token] = &overheardCall{key: key, at: time.Now()}
	told := &schema.LLMEvent{Number: key.Call}
	var call schema.Call
	body, unread := o.s.unpack(ctx, subjects.ArtifactsBucket(o.s.tid), m.Header, m.Data)
	if unread == nil {
		unread = schema.Decode(body, &call)
	}
	if unread == nil {
		told.Call = &call
	} else {
		told.Note = "the call cannot be read: " + unread.Error()
	}
	o.tell(key, told)
	return err
}

// frame tells of a part of an answer.
func (o *overhearing) frame(ctx context.Context, c *overheardCall, m *nats.Msg) {
	kind := schema.FrameKind(m.Header.Get(subjects.HeaderKind))
	var into schema.Message
	switch kind {
	case schema.FrameDelta:
		into = &schema.Delta{}
	case schema.FrameFinal:
		into = &schema.Reply{}
	case schema.FrameFault:
		into = &schema.Fault{}
	default:
		return
	}
	body, err := o.s.unpack(ctx, subjects.TasksBucket(o.s.tid), m.Header, m.Data)
	if err == nil {
		err = schema.Decode(body, into)
	}
	switch v := into.(type) {
	case *schema.Delta:
		if err == nil {
			o.piece(c.key.Attempt, c.key.Call, v)
		}
	case *schema.Reply:
		told := &schema.LLMEvent{Gen: m.Header.Get(subjects.HeaderGen), Reply: v}
		if err != nil {
			told.Reply, told.Note = nil, "the answer cannot be read: "+err.Error()
		}
		o.end(c, told)
	case *schema.Fault:
		if err == nil && v.Status != 0 && !schema.RetryableStatus(v.Status) { // without a status it counts as 500
			o.end(c, &schema.LLMEvent{Fault: v})
		}
	}
}

func (o *overhearing) end(c *overheardCall, e *schema.LLMEvent) {
	c.ended = true
	e.Number, e.MS = c.key.Call, max(time.Since(c.at).Milliseconds(), 1)
	o.tell(c.key, e)
}

func (o *overhearing) tell(key schema.Key, e *schema.LLMEvent) {
	o.event(&schema.Event{V: schema.Version, Type: schema.EventLLM, Rollout: key.Rollout, Attempt: key.Attempt, At: time.Now().UnixMilli(), LLM: e})
}
