package broker

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Events publishes the events of rollouts, and reads them.
type Events struct {
	*link
	messages *Messages
}

// Emit publishes an event. It does not wait for the server, and it only logs
// errors.
func (h *Events) Emit(e *schema.Event) {
	e.V, e.At = schema.Version, time.Now().UnixMilli()
	data, err := schema.Encode(e)
	if err == nil {
		if err = h.checkSize("event", len(data)); err != nil && e.LLM != nil {
			short := *e.LLM
			short.Call, short.Reply, short.Note = nil, nil, err.Error()
			e.LLM = &short
			if data, err = schema.Encode(e); err == nil {
				err = h.checkSize("event", len(data))
			}
		}
	}
	if err == nil {
		err = h.bulk.Publish(subjects.Event(e.Rollout, e.Type), data)
	}
	if err == nil && (e.Type == schema.EventPhase || e.Type == schema.EventWait) {
		err = h.bulk.Publish(subjects.TrainerEvents(e.Rollout.Trainer()), data)
	}
	if err != nil {
		h.log.Debug().Err(err).Str("rollout", string(e.Rollout)).Msg("an event was not published")
	}
}

// Live publishes a piece of an answer to the taps that watch now. It is not
// stored.
func (h *Events) Live(id schema.ID, attempt, call int, d *schema.Delta) {
	data, err := schema.Encode(d)
	if err == nil {
		err = h.bulk.PublishMsg(&nats.Msg{Subject: subjects.Live(id, attempt), Header: nats.Header{subjects.HeaderCall: {strconv.Itoa(call)}}, Data: data})
	}
	if err != nil {
		h.log.Debug().Err(err).Str("rollout", string(id)).Msg("a delta was not shown")
	}
}

// Pieces calls handle with the pieces that Live publishes of a rollout, until stop is
// called. A watcher that is too slow loses some.
func (h *Events) Pieces(id schema.ID, handle func(attempt, call int, d *schema.Delta)) (stop func(), err error) {
	return wire.Subscribe(h.bulk, subjects.LiveOf(id), func(m *nats.Msg) {
		attempt, aerr := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		call, cerr := strconv.Atoi(m.Header.Get(subjects.HeaderCall))
		var d schema.Delta
		if aerr == nil && cerr == nil && schema.Decode(m.Data, &d) == nil {
			handle(attempt, call, &d)
		}
	})
}

// Progress calls handle with the copies of events that a trainer may read, about the phases and
// waits of its rollouts, until stop is called. Events can be lost.
func (h *Events) Progress(tid string, handle func(schema.Event)) (stop func(), err error) {
	return wire.Subscribe(h.bulk, subjects.TrainerEvents(tid), func(m *nats.Msg) {
		var e schema.Event
		if schema.Decode(m.Data, &e) == nil && e.Rollout.Trainer() == tid {
			handle(e)
		}
	})
}
