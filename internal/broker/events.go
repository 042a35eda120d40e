package broker

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

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
