package front

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/schema"
)

// Bounds of a cancel.
const (
	maxCancelled = 10_000 // rollouts of one request
	maxReason    = 1024   // bytes
	cancelWait   = 10_000 // milliseconds
	cancelMost   = 60_000
	cancelEvery  = time.Second
)

// cancellation is the body of POST /v1/cancel. One of IDs, Group and All selects the
// rollouts.
type cancellation struct {
	IDs    []schema.ID `json:"ids,omitempty"`
	Group  string      `json:"group,omitempty"`
	All    bool        `json:"all,omitempty"`
	Reason string      `json:"reason,omitempty"`
	// WaitMS is the time in milliseconds that the answer waits for the ends of the rollouts;
	// nil: 10 s.
	WaitMS *int `json:"wait_ms,omitempty"`
}

// cancelled is the answer to it.
type cancelled struct {
	Ended []schema.ID `json:"ended"` // of ids, also rollouts that had ended before
	Open  []schema.ID `json:"open"`  // that have not ended yet: cancel them again
}

func (c *cancellation) check(trainer string) (wait time.Duration, err error) {
	chosen := 0
	for _, is := range []bool{len(c.IDs) > 0, c.Group != "", c.All} {
		if is {
			chosen++
		}
	}
	if chosen != 1 {
		return 0, invalidField("ids", strconv.Itoa(len(c.IDs))+" ids", "want one of ids, group and all")
	}
	if len(c.IDs) > maxCancelled {
		return 0, invalidField("ids", strconv.Itoa(len(c.IDs))+" ids", fmt.Sprintf("want at most %d", maxCancelled))
	}
	if len(c.Reason) > maxReason {
		return 0, invalidField("reason", c.Reason, fmt.Sprintf("want at most %d bytes", maxReason))
	}
	for i, id := range c.IDs {
		if parsed, err := schema.ParseID(string(id)); err != nil || parsed.Trainer() != trainer {
			p := notFound(string(id))
			p.Field = fmt.Sprintf("ids[%d]", i)
			return 0, p
		}
	}
	ms := cancelWait
	if c.WaitMS != nil {
		ms = *c.WaitMS
	}
	if ms < 0 || ms > cancelMost {
		return 0, invalidField("wait_ms", strconv.Itoa(ms), fmt.Sprintf("want 0 to %d", cancelMost))
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// cancel asks workers to end rollouts, again and again until all have ended or the wait is
// over.
func (s *Server) cancel(w http.ResponseWriter, r *http.Request, t *tenant) error {
	var body cancellation
	if err := read(w, r, &body); err != nil {
		return err
	}
	wait, err := body.check(t.name)
	if err != nil {
		return err
	}
	l, err := t.dial(r.Context())
	if err != nil {
		return err
	}
	open, ended, err := l.open(r.Context(), &body)
	if err != nil {
		return err
	}
	out := cancelled{Ended: ended, Open: []schema.ID{}}
	until := time.Now().Add(wait)
	for len(open) > 0 {
		if err := l.queue.Cancel(open.ids(), open.seqs(), body.Reason); err != nil {
			return err
		}
		left := time.Until(until)
		if left <= 0 {
			break
		}
		select {
		case <-r.Context().Done():
			return context.Cause(r.Context())
		case <-time.After(min(left, cancelEvery)):
		}
		over, err := l.ended(r.Context(), open)
		if err != nil {
			return err
		}
		i := -1
		open = slices.DeleteFunc(open, func(o openRollout) bool {
			if i++; over[i] {
				out.Ended = append(out.Ended, o.id)
			}
			return over[i]
		})
	}
	out.Open = append(out.Open, open.ids()...)
	status := http.StatusOK
	if len(open) > 0 {
		status = http.StatusAccepted
	}
	return reply(w, status, &out)
}

// openRollout is a rollout without a result, with the sequence of its message in the queue;
// 0: it is not known.
type openRollout struct {
	id  schema.ID
	seq uint64
}

type openRollouts []openRollout

func (o openRollouts) ids() []schema.ID {
	out := make([]schema.ID, len(o))
	for i := range o {
		out[i] = o[i].id
	}
	return out
}

func (o openRollouts) seqs() []uint64 {
	out := make([]uint64, len(o))
	for i := range o {
		out[i] = o[i].seq
	}
	return out
}

// errFound ends the reading of a queue.
var errFound = errors.New("all are found")

// open returns the selected rollouts without a result, and the ids of the ended ones. The queue
// has the message of each open rollout.
func (l *line) open(ctx context.Context, c *cancellation) (out openRollouts, ended []schema.ID, err error) {
	wanted := map[schema.ID]bool{}
	for _, id := range c.IDs {
		wanted[id] = true
	}
	err = l.queue.OpenRequests(ctx, func(q schema.Request, _ int, seq uint64, _ time.Time) error {
		if !c.All && (c.Group == "" || q.Group != c.Group) && !wanted[q.ID] {
			return nil
		}
		out = append(out, openRollout{q.ID, seq})
		if delete(wanted, q.ID); len(out) == maxCancelled || len(c.IDs) > 0 && len(wanted) == 0 {
			return errFound
		}
		return ctx.Err()
	})
	if err != nil && !errors.Is(err, errFound) {
		return nil, nil, err
	}
	ended = []schema.ID{}
	for i, id := range c.IDs {
		if !wanted[id] {
			continue
		}
		delete(wanted, id)
		state, err := l.b.Records.State(ctx, id)
		var bad *broker.UnreadableRecord
		switch {
		case errors.Is(err, broker.ErrNotFound):
			p := notFound(string(id))
			p.Field = fmt.Sprintf("ids[%d]", i)
			return nil, nil, p
		case err != nil && !errors.As(err, &bad):
			return nil, nil, err
		case state.Status.Terminal():
			ended = append(ended, id)
		default: // its message was moved while the queue was read
			out = append(out, openRollout{id, 0})
		}
	}
	return out, ended, nil
}

// ended reports which of the rollouts have ended meanwhile.
func (l *line) ended(ctx context.Context, open openRollouts) ([]bool, error) {
	over := make([]bool, len(open))
	all, op := errgroup.WithContext(ctx)
	all.SetLimit(lookedAt)
	for i := range open {
		all.Go(func() error {
			state, err := l.b.Records.State(op, open[i].id)
			var bad *broker.UnreadableRecord
			if errors.Is(err, broker.ErrNotFound) || errors.As(err, &bad) {
				return nil
			}
			over[i] = state.Status.Terminal()
			return err
		})
	}
	return over, all.Wait()
}

// retry submits the request of an ended rollout under a new id.
func (s *Server) retry(w http.ResponseWriter, r *http.Request, t *tenant) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	l, err := t.dial(r.Context())
	if err != nil {
		return err
	}
	one, err := l.find(r.Context(), t, r.PathValue("id"), true)
	if err != nil {
		return err
	}
	if one.State == nil || !one.State.Status.Terminal() {
		return problemf(http.StatusConflict, codeConflict, string(one.ID)+" has not ended: cancel it first")
	}
	q, err := l.system.Again(r.Context(), one.ID)
	if gone := (*operate.NoRequestError)(nil); errors.As(err, &gone) {
		return problemf(http.StatusConflict, codeConflict, gone.Error())
	}
	if err != nil {
		return err
	}
	name := ulid.Make().String()
	if key != "" {
		name = fmt.Sprintf("retry of %s %s", one.ID, key)
	}
	if q.ID, err = nameID(t.name, name); err != nil {
		return err
	}
	out, err := s.put(r.Context(), t, batch{[]schema.Request{q}, nil, "request", key != ""})
	if err != nil {
		return err
	}
	return reply(w, http.StatusAccepted, out)
}
