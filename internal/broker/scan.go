package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker/wire"
)

// Bounds of one batch of direct gets.
const (
	scanBatch = 256
	scanBytes = 4 << 20
)

// stored is a message of a stream.
type stored struct {
	subject string
	seq     uint64
	data    []byte
}

// scan reads a batch of messages of a stream from the sequence from, in order,
// without a consumer. It returns the sequence after the last one. If handle was
// not called, there is no message yet.
func (h *Messages) scan(ctx context.Context, stream, filter string, from uint64, handle func(stored)) (next uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{"seq": max(from, 1), "next_by_subj": filter, "batch": scanBatch, "max_bytes": scanBytes})
	if err != nil {
		return from, err
	}
	answers, err := h.bulk.SubscribeSync(h.bulk.NewInbox())
	if err != nil {
		return from, fmt.Errorf("read stream %s: %w", stream, Reach(err))
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := h.bulk.PublishRequest(directGet(stream), answers.Subject, body); err != nil {
		return from, fmt.Errorf("read stream %s: %w", stream, Reach(err))
	}
	var before uint64 // sequence of the last message
	for {
		m, err := answers.NextMsgWithContext(ctx)
		if err == nil {
			switch status := m.Header.Get("Status"); status {
			case "":
			case "204", "404": // the end of the batch; no message
				return from, nil
			case "503":
				err = nats.ErrNoResponders
			default:
				err = fmt.Errorf("the server answers %s %s", status, m.Header.Get("Description"))
			}
		}
		var s stored
		if err == nil {
			s, err = storedOf(m, before)
		}
		if err != nil {
			return from, fmt.Errorf("read stream %s: %w", stream, err)
		}
		before, from = s.seq, s.seq+1
		handle(s)
	}
}

// storedOf reads the headers that the server adds to a message. They are the last
// of their names, since the publisher may have set the same names. A batch names
// the sequence of the message before each; before is the one that arrived.
func storedOf(m *nats.Msg, before uint64) (stored, error) {
	last := func(name string) string {
		if v := m.Header[name]; len(v) > 0 {
			return v[len(v)-1]
		}
		return ""
	}
	seq, err := strconv.ParseUint(last(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return stored{}, fmt.Errorf("the sequence of a message: %w", err)
	}
	if text := last("Nats-Last-Sequence"); text != strconv.FormatUint(before, 10) {
		return stored{}, errors.New("a message of the batch is missing")
	}
	return stored{subject: last(jetstream.SubjectHeader), seq: seq, data: m.Data}, nil
}

// firstSince returns the sequence of the first message that was stored at a time or
// later; 0: there is none.
func (h *Messages) firstSince(ctx context.Context, stream, filter string, at time.Time) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{"start_time": at, "next_by_subj": filter})
	if err != nil {
		return 0, err
	}
	m, err := h.bulk.RequestWithContext(ctx, directGet(stream), body)
	if err != nil {
		return 0, fmt.Errorf("read stream %s: %w", stream, Reach(err))
	}
	switch status := m.Header.Get("Status"); status {
	case "":
		return strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	case "404": // no message
		return 0, nil
	default:
		return 0, fmt.Errorf("read stream %s: the server answers %s %s", stream, status, m.Header.Get("Description"))
	}
}

// scanAll reads all messages that a stream has.
func (h *Messages) scanAll(ctx context.Context, stream, filter string, handle func(stored)) error {
	for from := uint64(1); ; {
		next, err := h.scan(ctx, stream, filter, from, handle)
		if err != nil || next == from {
			return err
		}
		from = next
	}
}

// Read reads the messages of a stream in order, beginning at the sequence from,
// until all are read or handle returns false.
func (h *Messages) Read(ctx context.Context, stream, filter string, from uint64, handle func(jetstream.Msg, *jetstream.MsgMetadata) bool) error {
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverAllPolicy, InactiveThreshold: 30 * time.Second}
	cfg.MaxResetAttempts = 1 // by default a fetch waits for a lost server for ever and ignores its context
	if from > 1 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	c, err := h.js.OrderedConsumer(ctx, stream, cfg)
	if err != nil {
		return fmt.Errorf("read stream %s: %w", stream, err)
	}
	left := c.CachedInfo().NumPending
	name := c.CachedInfo().Name
	defer func() {
		op, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.OpTimeout)
		defer cancel()
		_ = h.js.DeleteConsumer(op, stream, name) // otherwise it expires after 30 s
	}()
	for left > 0 {
		got, more, err := fetch(c, int(min(left, 512)), &left, handle)
		if err != nil {
			return fmt.Errorf("read stream %s: %w", stream, err)
		}
		if got == 0 || !more {
			return nil
		}
		name = c.CachedInfo().Name
	}
	return nil
}

// fetch reads up to n messages. It may get fewer, since a newer message replaces
// an older one of the same subject.
func fetch(c jetstream.Consumer, n int, left *uint64, handle func(jetstream.Msg, *jetstream.MsgMetadata) bool) (got int, more bool, err error) {
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(time.Second))
	if err != nil {
		return 0, false, err
	}
	more = true
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return got, false, err
		}
		got++
		*left = meta.NumPending
		if more = more && handle(m, meta); !more {
			break
		}
	}
	return got, more, batch.Error()
}
