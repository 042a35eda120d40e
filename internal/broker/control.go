package broker

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// maxControls bounds the messages that Controls reads.
const maxControls = 2000

// Control is the last word of a trainer about one of its shards, or about its hold.
type Control struct {
	Trainer string
	Process *schema.Process // that has the calls of its shard
	Hold    *schema.Hold
	At      time.Time // of the last renewal; it lapses after Timing.Lease
}

// Controls reads the processes and the holds of all trainers. It sends a request for
// each.
func (h *Records) Controls(ctx context.Context) (out []Control, err error) {
	s, err := h.streams.Open(ctx, subjects.StreamControl)
	if err != nil {
		return nil, err
	}
	err = each(ctx, s, subjects.ControlFilter, 1, func(m *jetstream.RawStreamMsg) bool {
		c := Control{At: m.Time}
		var read error
		if tid, ok := strings.CutPrefix(m.Subject, subjects.Hold("")); ok {
			c.Trainer, c.Hold = tid, &schema.Hold{}
			read = schema.Decode(m.Data, c.Hold)
		} else if t := strings.Split(m.Subject, "."); len(t) == 5 {
			c.Trainer, c.Process = t[3], &schema.Process{}
			read = schema.Decode(m.Data, c.Process)
		} else {
			return true
		}
		if read != nil {
			h.log.Debug().Err(read).Str("subject", m.Subject).Msg("a message of a trainer cannot be read")
			return true
		}
		out = append(out, c)
		return len(out) < maxControls
	})
	return out, err
}
