package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Trainer is the client for one trainer. It submits and cancels rollouts.
type Trainer struct {
	Records   *broker.Records
	Results   *Results
	Processes *Processes

	broker  *broker.Broker
	tid     string
	offered offered
}

// NewTrainer returns the client for a trainer. Its only error is an
// *schema.InvalidError for the name.
func NewTrainer(b *broker.Broker, tid string) (*Trainer, error) {
	t, err := TrainerOf(b, tid)
	if err != nil {
		return nil, err
	}
	b.Streams.ReopenWith(func(ctx context.Context, of string) error {
		if of != tid {
			return fmt.Errorf("trainer %s asked for a stream of trainer %s", tid, of)
		}
		_, err := t.Open(ctx)
		return err
	})
	return t, nil
}

// TrainerOf is NewTrainer for a connection that acts for several trainers: missing
// streams of a trainer stay missing.
func TrainerOf(b *broker.Broker, tid string) (*Trainer, error) {
	if err := schema.CheckTrainer(tid); err != nil {
		return nil, err
	}
	return &Trainer{Records: b.Records, Results: &Results{b, tid}, Processes: &Processes{b, tid}, broker: b, tid: tid, offered: offered{seen: map[string]map[string]bool{}}}, nil
}

// Open asks a worker to make the missing streams of this trainer, and returns the
// trainer's bounds. The error says so if there is no worker.
func (t *Trainer) Open(ctx context.Context) (schema.Opened, error) {
	var o schema.Opened
	op, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	m, err := t.broker.BulkConn().RequestWithContext(op, subjects.TrainerOpen(t.tid), nil)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return o, fmt.Errorf("ask for the streams of trainer %s: %w", t.tid, ErrNoWorker)
	case err == nil:
		err = schema.Decode(m.Data, &o)
	}
	if err != nil {
		return o, fmt.Errorf("ask for the streams of trainer %s: %w", t.tid, broker.Reach(err))
	}
	if o.Error != "" {
		return o, fmt.Errorf("a worker cannot open the streams of trainer %s: %s", t.tid, o.Error)
	}
	return o, nil
}

// ErrNoWorker occurs when no worker answers a trainer.
var ErrNoWorker = errors.New("no worker is there")

// AwaitSetup waits until all streams of this trainer exist. It asks a worker to
// make missing ones, and waits for a worker. While the server cannot be reached,
// it waits too.
func (t *Trainer) AwaitSetup(ctx context.Context) error {
	for try := 0; ; try++ {
		there, err := t.hasStreams(ctx)
		if there || err != nil {
			return err
		}
		if _, err = t.Open(ctx); err == nil {
			return nil
		}
		if try == 0 {
			t.broker.Log().Info().Err(err).Str("trainer", t.tid).Msg("waiting for a worker to make the streams")
		}
		if perr := wire.Pause(ctx, 200*time.Millisecond); perr != nil {
			return errors.Join(err, perr)
		}
	}
}

func (t *Trainer) hasStreams(ctx context.Context) (bool, error) {
	for _, name := range subjects.StreamsOf(t.tid) {
		there, err := broker.Insist(ctx, t.broker.Log(), "look for stream "+name, func(ctx context.Context) (bool, error) {
			_, err := t.broker.JetStream().Stream(ctx, name)
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				return false, nil
			}
			return err == nil, err
		})
		if !there || err != nil {
			return false, err
		}
	}
	return true, nil
}

// ErrQueueFull is returned when the request queue is full; try again when
// workers have taken requests.
var ErrQueueFull = errors.New("the request queue is full")

// Submit puts up to MaxBatch requests on a lane (0 is the most urgent), all of
// them or none, and returns the sequence of each in the queue. A request that was
// submitted within the last two minutes is not queued twice.
//
// ErrQueueFull means that no request was taken: try again later. After an error
// for which Refused is false, requests with a sequence other than 0 are in the
// queue; the others may be. Submitting them again is safe.
func (t *Trainer) Submit(ctx context.Context, lane int, requests []schema.Request) ([]uint64, error) {
	if lane < 0 || lane >= subjects.Lanes {
		return nil, fmt.Errorf("lane: %d is not valid: want 0 to %d", lane, subjects.Lanes-1)
	}
	if len(requests) == 0 || len(requests) > broker.MaxBatch {
		return nil, fmt.Errorf("submit: %d requests at once, want 1 to %d", len(requests), broker.MaxBatch)
	}
	msgs := make([]*nats.Msg, len(requests))
	for i := range requests {
		data, err := schema.Encode(&requests[i])
		if err != nil {
			return nil, fmt.Errorf("submit %s: %w", requests[i].ID, err)
		}
		if err := t.broker.CheckSize("request "+string(requests[i].ID), len(data)); err != nil {
			return nil, err
		}
		msgs[i] = &nats.Msg{Subject: subjects.Request(lane, t.tid), Data: data}
		msgs[i].Header = requestHeader(ctx, requests[i].ID)
	}
	if len(msgs) > 1 {
		last, err := t.broker.Messages.Batch(ctx, msgs...)
		if err == nil {
			seqs := make([]uint64, len(msgs))
			for i := range seqs {
				seqs[i] = last - uint64(len(seqs)-1-i) // a batch is stored in one piece
			}
			return seqs, nil
		}
		var api *jetstream.APIError
		if !errors.As(err, &api) || api.ErrorCode != wire.CodeDuplicate {
			return nil, submitError(requests[0].ID, err)
		}
		// The queue has some of them already, since an earlier answer was lost.
		// Publishing them one by one queues each once.
	}
	seqs := make([]uint64, len(msgs))
	for i, m := range msgs {
		single := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: requestHeader(ctx, requests[i].ID)} // without the headers of the batch
		ack, err := t.broker.JetStream().PublishMsg(ctx, single)
		if err != nil && len(msgs) > 1 {
			return seqs, errors.Join(submitError(requests[i].ID, err), errPartly)
		}
		if err != nil {
			t.broker.Streams.ReopenFor(ctx, single.Subject, err) // for the next try
			return nil, submitError(requests[i].ID, err)
		}
		seqs[i] = ack.Sequence
	}
	return seqs, nil
}

// requestHeader returns the headers of a request: its id, and the trace of the context.
func requestHeader(ctx context.Context, id schema.ID) nats.Header {
	h := nats.Header{wire.HeaderMsgID: {string(id)}}
	traces.Put(h, traces.SpanContext(ctx))
	return h
}

func submitError(id schema.ID, err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == wire.CodeStoreFailed || api.ErrorCode == wire.CodeResources) {
		return fmt.Errorf("submit %s: %w", id, ErrQueueFull)
	}
	return fmt.Errorf("submit %s: %w", id, broker.Reach(err))
}

// PutBundle stores a task bundle and returns its sha256, which is its name. A
// bundle that the store has already is not sent again. A *FullError means that
// this trainer's bundles have reached their bound.
func (t *Trainer) PutBundle(ctx context.Context, data []byte) (string, error) {
	return t.broker.Objects.PutBundle(ctx, t.tid, data)
}

// Artifact reads a file of a rollout and checks its sha256. It fails with the
// errors of broker.Objects.Bundle.
func (t *Trainer) Artifact(ctx context.Context, sha string) ([]byte, error) {
	return t.broker.Objects.Artifact(ctx, t.tid, sha)
}

// CopyArtifact is Artifact, but writes the file to a writer, see
// broker.Objects.CopyArtifact.
func (t *Trainer) CopyArtifact(ctx context.Context, sha string, to io.Writer) error {
	return t.broker.Objects.CopyArtifact(ctx, t.tid, sha, to)
}

// Queued reports whether the queue still has the message of this rollout, at that
// sequence or parked.
func (t *Trainer) Queued(ctx context.Context, id schema.ID, seq uint64) (bool, error) {
	if there, err := queuedIn(ctx, t.broker.Messages, subjects.Queue(t.tid), id, seq); there || err != nil {
		return there, err
	}
	m, err := parked(ctx, t.broker.Messages, id)
	return m != nil, err
}

// RequestAt reads the request of a rollout at a sequence of the queue. The error wraps
// broker.ErrNotFound if the queue does not have it there any more.
func (t *Trainer) RequestAt(ctx context.Context, id schema.ID, seq uint64) (r schema.Request, err error) {
	m, err := t.broker.Messages.At(ctx, subjects.Queue(t.tid), seq)
	if err != nil {
		return r, err
	}
	if m == nil || schema.Decode(m.Data, &r) != nil || r.ID != id {
		return schema.Request{}, fmt.Errorf("request of %s: %w", id, broker.ErrNotFound)
	}
	return r, nil
}

// OpenRequests calls handle for the request of each open rollout of this trainer, with the lane,
// the sequence and the time of its message, oldest first. It reads one message for each.
func (t *Trainer) OpenRequests(ctx context.Context, handle func(r schema.Request, lane int, seq uint64, at time.Time) error) error {
	s, err := t.broker.Streams.Fresh(ctx, subjects.Queue(t.tid))
	if err != nil {
		return err
	}
	state := s.CachedInfo().State
	for seq := max(state.FirstSeq, 1); seq <= state.LastSeq; seq++ {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the queue of trainer %s: %w", t.tid, broker.Reach(err))
		}
		seq = m.Sequence
		lane, _, parked := subjects.ParseParked(m.Subject)
		if !parked {
			lane = subjects.LaneOf(m.Subject)
		}
		var r schema.Request
		if schema.Decode(m.Data, &r) != nil || r.ID.Trainer() != t.tid { // a worker answers it
			continue
		}
		if err := handle(r, lane, seq, m.Time); err != nil {
			return err
		}
	}
	return nil
}

// FirstTaken returns the time, by the server's clock, at which a worker first took a
// rollout, or ended it unclaimed; zero if none did.
func (t *Trainer) FirstTaken(ctx context.Context, id schema.ID) (time.Time, error) {
	m, err := t.broker.Messages.Last(ctx, subjects.Records(t.tid), subjects.RequestCopy(id))
	if m == nil || err != nil {
		return time.Time{}, err
	}
	return m.Time, nil
}

// Cancel asks workers to end rollouts. The message may be lost: repeat it until
// every rollout has a result. seqs has the sequence of each rollout's message, as
// Submit returned it, or 0; it may be nil.
func (t *Trainer) Cancel(ids []schema.ID, seqs []uint64, reason string) error {
	data, err := schema.Encode(&schema.Cancel{V: schema.Version, IDs: ids, Seqs: seqs, Reason: reason})
	if err != nil {
		return err
	}
	if err := t.broker.BulkConn().Publish(subjects.TrainerCancel(t.tid), data); err != nil {
		return fmt.Errorf("ask to cancel: %w", broker.Reach(err))
	}
	return t.broker.BulkConn().FlushTimeout(5 * time.Second)
}
