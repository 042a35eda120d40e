package chaos_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// tap hears everything from outside the workers, with credentials of its own:
// what is published, and what the stream has kept.
type tap struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream

	mu     sync.Mutex
	events []heardEvent
	states map[schema.ID][]schema.State  // in the order in which they were heard
	kept   map[schema.ID]map[uint64]bool // sequences under which a result was stored
	ctx    context.Context
	stop   context.CancelFunc
	done   sync.WaitGroup
}

type heardEvent struct {
	rollout schema.ID
	attempt int
	at      int64 // by its worker's clock, Unix ms
	kind    schema.EventType
}

// openTap watches until close. It uses the workers' credential to read streams,
// since a server that was wiped must be read too.
func openTap(t testing.TB, b *bench) *tap {
	t.Helper()
	seed, err := nats.NkeyOptionFromSeed(b.creds("worker"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.url(), seed, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.CustomInboxPrefix("_INBOX.chaostap"))
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	p := &tap{nc: nc, js: js, states: map[schema.ID][]schema.State{}, kept: map[schema.ID]map[uint64]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	sub, err := nc.Subscribe("rollout.*.>", p.hear)
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	p.done.Go(p.follow)
	t.Cleanup(p.close)
	return p
}

func (p *tap) close() {
	p.stop()
	p.nc.Close()
	p.done.Wait()
}

func (p *tap) hear(m *nats.Msg) {
	id, ok := schema.ID(""), false
	if parts := strings.Split(m.Subject, "."); len(parts) >= 3 {
		parsed, err := schema.ParseID(parts[1])
		id, ok = parsed, err == nil
	}
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case strings.Contains(m.Subject, ".events."):
		var e schema.Event
		if schema.Decode(m.Data, &e) == nil {
			p.events = append(p.events, heardEvent{id, e.Attempt, e.At, e.Type})
		}
	case strings.HasSuffix(m.Subject, ".state"):
		var s schema.State
		if schema.Decode(m.Data, &s) == nil {
			p.states[id] = append(p.states[id], s)
		}
	}
}

// follow reads every result that is stored, as it is stored: a second one
// would take the first one's place.
func (p *tap) follow() {
	next := uint64(1)
	looked := time.Time{}
	for p.ctx.Err() == nil {
		if time.Since(looked) > time.Second {
			op, cancel := context.WithTimeout(p.ctx, time.Second)
			s, err := p.js.Stream(op, subjects.StreamRollouts)
			cancel()
			if err != nil {
				wait(p.ctx, 20*time.Millisecond)
				continue
			}
			if last := s.CachedInfo().State.LastSeq; last+1 < next { // wiped
				next = 1
			}
			looked, p.stream = time.Now(), s
		}
		op, cancel := context.WithTimeout(p.ctx, time.Second)
		m, err := p.stream.GetMsg(op, next, jetstream.WithGetMsgSubject(subjects.ResultFilter))
		cancel()
		if err != nil {
			wait(p.ctx, 3*time.Millisecond)
			continue
		}
		if id, ok := subjects.RolloutID(m.Subject); ok {
			p.mu.Lock()
			if p.kept[id] == nil {
				p.kept[id] = map[uint64]bool{}
			}
			p.kept[id][m.Sequence] = true
			p.mu.Unlock()
		}
		next = m.Sequence + 1
	}
}

// copyOf is the request as a worker kept it.
func (p *tap) copyOf(id schema.ID) ([]byte, error) {
	op, cancel := context.WithTimeout(p.ctx, time.Second)
	defer cancel()
	s, err := p.js.Stream(op, subjects.StreamRollouts)
	if err != nil {
		return nil, err
	}
	m, err := s.GetLastMsgForSubject(op, subjects.RequestCopy(id))
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}

// final reads the state and the result of a rollout as they are kept.
func (p *tap) final(id schema.ID) (s schema.State, r schema.Result, err error) {
	op, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	stream, err := p.js.Stream(op, subjects.StreamRollouts)
	if err != nil {
		return s, r, err
	}
	m, err := stream.GetLastMsgForSubject(op, subjects.State(id))
	if err != nil {
		return s, r, fmt.Errorf("state: %w", err)
	}
	if err := schema.Decode(m.Data, &s); err != nil {
		return s, r, err
	}
	if m, err = stream.GetLastMsgForSubject(op, subjects.Result(id)); err != nil {
		return s, r, fmt.Errorf("result: %w", err)
	}
	return s, r, schema.Decode(m.Data, &r)
}

// queued counts the messages of the queue and those that are with a worker.
func (p *tap) queued() (waiting uint64, out int, err error) {
	op, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	stream, err := p.js.Stream(op, subjects.StreamRequests)
	if err != nil {
		return 0, 0, err
	}
	consumers := stream.ListConsumers(op)
	for c := range consumers.Info() {
		out += c.NumAckPending
	}
	return stream.CachedInfo().State.Msgs, out, consumers.Err()
}

// leases lists the instances that still show that they are alive.
func (p *tap) leases() ([]string, error) {
	op, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	stream, err := p.js.Stream(op, subjects.StreamLeases)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(op, jetstream.WithSubjectFilter(subjects.LeaseFilter))
	if err != nil {
		return nil, err
	}
	var out []string
	for subject := range info.State.Subjects {
		if subject == subjects.JanitorLease {
			continue
		}
		if m, err := stream.GetLastMsgForSubject(op, subject); err == nil && string(m.Data) == "alive" {
			out = append(out, subject)
		}
	}
	return out, nil
}
