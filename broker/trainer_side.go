package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TrainerSide is what one trainer does with the broker: submit, hear and
// answer calls, read results, cancel.
type TrainerSide struct {
	*Broker
	tid string
}

// TrainerSide opens a trainer's face of the broker.
func (b *Broker) TrainerSide(tid string) (*TrainerSide, error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return nil, err
	}
	return &TrainerSide{Broker: b, tid: tid}, nil
}

// trainerStreams are what a trainer reads, in the order in which workers make
// them.
func trainerStreams() []string {
	return []string{subjects.StreamRequests, subjects.StreamRollouts, subjects.ObjectStream(subjects.BucketTasks), subjects.ObjectStream(subjects.BucketArtifact)}
}

// AwaitSetup waits until a worker has made all the streams that a trainer
// uses: on a new server they are not there before the first one has started, and
// the server may be away.
func (t *TrainerSide) AwaitSetup(ctx context.Context) error {
	for _, name := range trainerStreams() {
		for waiting := false; ; waiting = true {
			there, err := t.hasStream(ctx, name)
			if err != nil {
				return err
			}
			if there {
				break
			}
			if !waiting {
				t.log.Info().Str("stream", name).Msg("waiting for the first worker to make the streams")
			}
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return fmt.Errorf("no worker has made stream %s: %w", name, err)
			}
		}
	}
	return nil
}

func (t *TrainerSide) hasStream(ctx context.Context, name string) (bool, error) {
	return insist(ctx, t.Broker, "look for stream "+name, func(ctx context.Context) (bool, error) {
		_, err := t.stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return false, nil
		}
		return err == nil, err
	})
}

// ErrQueueFull is returned when the request queue takes no more; try again
// when rollouts have ended.
var ErrQueueFull = errors.New("the request queue is full")

// Submit puts requests on a lane (0 is the most urgent), all of them or none,
// and returns the queue's sequence of each. A request that was submitted within
// the last two minutes is not queued twice. At most MaxBatch at once.
//
// ErrQueueFull: none was taken, try again later. After any other error it is
// not known whether they are on the queue; submitting them again is safe.
func (t *TrainerSide) Submit(ctx context.Context, lane int, requests []schema.Request) ([]uint64, error) {
	if lane < 0 || lane >= subjects.Lanes {
		return nil, fmt.Errorf("lane: %d is not valid: want 0 to %d", lane, subjects.Lanes-1)
	}
	if len(requests) == 0 || len(requests) > MaxBatch {
		return nil, fmt.Errorf("submit: %d requests at once, want 1 to %d", len(requests), MaxBatch)
	}
	msgs := make([]*nats.Msg, len(requests))
	for i := range requests {
		data, err := schema.Encode(&requests[i])
		if err != nil {
			return nil, fmt.Errorf("submit %s: %w", requests[i].ID, err)
		}
		if err := checkSize(t.bulk, "request "+string(requests[i].ID), len(data)); err != nil {
			return nil, err
		}
		msgs[i] = &nats.Msg{Subject: subjects.Request(lane, t.tid), Data: data, Header: nats.Header{headerMsgID: {string(requests[i].ID)}}}
	}
	if len(msgs) > 1 {
		last, err := t.batch(ctx, msgs...)
		if err == nil {
			seqs := make([]uint64, len(msgs))
			for i := range seqs {
				seqs[i] = last - uint64(len(seqs)-1-i) // a batch is stored in one piece
			}
			return seqs, nil
		}
		var api *jetstream.APIError
		if !errors.As(err, &api) || api.ErrorCode != codeDuplicate {
			return nil, submitError(requests[0].ID, err)
		}
		// Some are there already, since an answer was lost: then all are, or the
		// rest is new. One by one each is queued once.
	}
	seqs := make([]uint64, len(msgs))
	for i, m := range msgs {
		single := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: nats.Header{headerMsgID: m.Header[headerMsgID]}}
		ack, err := t.js.PublishMsg(ctx, single)
		if err != nil {
			return nil, submitError(requests[i].ID, err)
		}
		seqs[i] = ack.Sequence
	}
	return seqs, nil
}

func submitError(id schema.ID, err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == codeStoreFailed || api.ErrorCode == codeResources) {
		return fmt.Errorf("submit %s: %w", id, ErrQueueFull)
	}
	return fmt.Errorf("submit %s: %w", id, reach(err))
}

// Queued reports whether the queue still has the message of this rollout at
// that sequence.
func (t *TrainerSide) Queued(ctx context.Context, id schema.ID, seq uint64) (bool, error) {
	return t.queuedAt(ctx, id, seq)
}

// ResultsFrom calls handle with the rollout of every result that was stored at
// sequence from or later, and returns where to go on the next time. It costs a
// read for each new result, not for each rollout that is waited for. From 0
// means from now on.
func (t *TrainerSide) ResultsFrom(ctx context.Context, from uint64, handle func(schema.ID)) (next uint64, err error) {
	s, err := t.js.Stream(ctx, subjects.StreamRollouts) // anew: what it holds counts
	if err != nil {
		return from, fmt.Errorf("open stream %s: %w", subjects.StreamRollouts, reach(err))
	}
	last := s.CachedInfo().State.LastSeq
	if from == 0 {
		return last + 1, nil
	}
	if last+1 < from { // the store was wiped
		from = 1
	}
	for from <= last {
		m, err := s.GetMsg(ctx, from, jetstream.WithGetMsgSubject(subjects.ResultFilter))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return last + 1, nil
		}
		if err != nil {
			return from, fmt.Errorf("look for results: %w", err)
		}
		if id, ok := subjects.RolloutID(m.Subject); ok && id.Trainer() == t.tid {
			handle(id)
		}
		from = m.Sequence + 1
	}
	return from, nil
}

// Cancel asks workers to end rollouts. It is a hint: repeat it until the
// results are there.
func (t *TrainerSide) Cancel(ids []schema.ID, reason string) error {
	data, err := schema.Encode(&schema.Cancel{V: schema.Version, IDs: ids, Reason: reason})
	if err != nil {
		return err
	}
	if err := t.bulk.Publish(subjects.TrainerCancel(t.tid), data); err != nil {
		return fmt.Errorf("ask to cancel: %w", reach(err))
	}
	return t.bulk.FlushTimeout(5 * time.Second)
}

// Hints calls handle for every hint that a result was committed, until stop.
func (t *TrainerSide) Hints(handle func(schema.ID)) (stop func(), err error) {
	sub, err := t.bulk.Subscribe(subjects.TrainerResults(t.tid), func(m *nats.Msg) {
		var h schema.Hint
		if schema.Decode(m.Data, &h) == nil && h.ID.Trainer() == t.tid {
			handle(h.ID)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to results: %w", err)
	}
	return bounded(t.bulk, sub)
}

// Asked is a model call or a tool call as it came, or the wish to end one.
type Asked struct {
	Key    schema.Key
	Shard  string
	Tool   bool   // it is a tool call
	Body   []byte // a schema.Call or schema.ToolCall; empty for a cancel
	Cancel bool

	// ResumeGen and Resume say what the asker holds already: deltas of a
	// generation.
	ResumeGen string
	Resume    int

	reply string
	nc    *nats.Conn
}

// Listen calls handle for every call of this trainer (of one shard, unless it
// is empty) until stop. It may take as long as it likes, since calls are handled
// side by side: a cancel may be heard before the call that it is about.
func (t *TrainerSide) Listen(shard string, handle func(Asked)) (stop func(), err error) {
	return t.listen(subjects.CallsOf(t.tid, shard), subjects.ParseCall, Asked{}, handle)
}

// ListenTools is Listen for calls of tools that the trainer runs.
func (t *TrainerSide) ListenTools(shard string, handle func(Asked)) (stop func(), err error) {
	return t.listen(subjects.ToolsOf(t.tid, shard), subjects.ParseTool, Asked{Tool: true}, handle)
}

func (t *TrainerSide) listen(subject string, parse func(string) (schema.Key, string, bool), as Asked, handle func(Asked)) (stop func(), err error) {
	sub, err := t.calls.SubscribeSync(subject)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	if stop, err = bounded(t.calls, sub); err != nil {
		return nil, err
	}
	all := &turns{sub: sub, handle: func(m *nats.Msg) {
		key, shard, ok := parse(m.Subject)
		if !ok {
			return
		}
		a := as
		a.Key, a.Shard, a.nc = key, shard, t.calls
		if m.Header.Get(subjects.HeaderKind) == subjects.KindCancel {
			a.Cancel = true
			handle(a)
			return
		}
		if !subjects.IsGateInbox(m.Reply, t.tid) {
			t.log.Warn().Str("call", key.String()).Msg("a call with a foreign reply subject was dropped")
			return
		}
		a.reply = m.Reply
		if a.ResumeGen = m.Header.Get(subjects.HeaderGen); a.ResumeGen != "" {
			a.Resume, _ = strconv.Atoi(m.Header.Get(subjects.HeaderResume))
		}
		var err error
		if a.Body, err = t.unpack(context.Background(), subjects.BucketArtifact, m.Header, m.Data); err != nil {
			t.log.Warn().Err(err).Str("call", key.String()).Msg("a call cannot be unpacked; its worker asks again")
			return
		}
		handle(a)
	}}
	go all.take()
	return stop, nil
}

// bounded limits what waits in a subscription, and sees to it that the server
// has it.
func bounded(nc *nats.Conn, sub *nats.Subscription) (stop func(), err error) {
	if err := sub.SetPendingLimits(1<<20, 512<<20); err != nil {
		return nil, fmt.Errorf("bound the subscription to %s: %w", sub.Subject, err)
	}
	if err := nc.FlushTimeout(5 * time.Second); err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", sub.Subject, err)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

// Frame is what a trainer sends to whoever asked.
type Frame struct {
	Kind schema.FrameKind
	Gen  string
	Seq  int  // of a delta; of a final: the number of deltas
	Held bool // of accept and beat
	Body Packed
}

// EncodeFrame encodes a body for a frame. A large one is compressed, and what
// does not fit into a message is put where the worker finds it.
// Errors are those of schema.Encode, a *TooLargeError above schema.MaxBody, or
// of the object store.
func (t *TrainerSide) EncodeFrame(ctx context.Context, m schema.Message) (Packed, error) {
	data, err := schema.Encode(m)
	if err != nil {
		return Packed{}, err
	}
	return t.pack(ctx, "a trainer's frame", subjects.BucketTasks, data)
}

// Send publishes one frame of the answer.
func (a Asked) Send(f Frame) error {
	values := [...]string{string(f.Kind), f.Gen, "1", strconv.Itoa(f.Seq)}
	h := nats.Header{subjects.HeaderKind: values[0:1:1]}
	if f.Gen != "" {
		h[subjects.HeaderGen] = values[1:2:2]
	}
	if f.Held {
		h[subjects.HeaderHeld] = values[2:3:3]
	}
	if f.Kind == schema.FrameDelta || f.Kind == schema.FrameFinal {
		h[subjects.HeaderSeq] = values[3:4:4]
	}
	maps.Copy(h, f.Body.header)
	return a.nc.PublishMsg(&nats.Msg{Subject: a.reply, Header: h, Data: f.Body.data})
}
