package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Bounds of one write. A page sends a larger selection in parts.
const (
	maxActed  = 10_000  // rollouts or dead requests
	maxWrite  = 1 << 20 // bytes
	maxErrors = 10      // that the answer names
	maxLogged = 100     // ids in a line of the log
)

// Order is a write: the things to act on.
type Order struct {
	IDs  []string `json:"ids,omitempty"`
	Seqs []uint64 `json:"seqs,omitempty"`
}

// Outcome tells of a write.
type Outcome struct {
	Done   int      `json:"done"`
	Failed int      `json:"failed"`
	Errors []string `json:"errors"` // the first ones
	New    []string `json:"new"`    // ids of new rollouts
}

func (o *Outcome) fail(n int, err error) {
	o.Failed += n
	if len(o.Errors) < maxErrors {
		o.Errors = append(o.Errors, plain.Line(err.Error(), maxFault))
	}
}

// write answers a write with its outcome, and leaves a line in the log.
func (s *Server) write(name string, allowed func(operate.Rights) error, act func(context.Context, Order, *Outcome) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var order Order
		refuse := func(status int, why error) {
			audit(&s.config.Log, name, sessionIn(r), why.Error(), func(*zerolog.Event) {})
			http.Error(w, plain.Line(why.Error(), maxFault), status)
		}
		body := http.MaxBytesReader(w, r.Body, maxWrite)
		if err := json.NewDecoder(body).Decode(&order); err != nil {
			refuse(http.StatusBadRequest, fmt.Errorf("the order cannot be read: %w", rawjson.Plain(err)))
			return
		}
		if n := len(order.IDs) + len(order.Seqs); n == 0 || n > maxActed {
			refuse(http.StatusBadRequest, fmt.Errorf("the order names %d things: want 1 to %d", n, maxActed))
			return
		}
		rights, err := s.rights(r.Context())
		if err != nil {
			refuse(http.StatusBadGateway, err)
			return
		}
		if why := allowed(rights); why != nil {
			refuse(http.StatusForbidden, why)
			return
		}
		out := Outcome{Errors: []string{}, New: []string{}}
		if err := act(r.Context(), order, &out); err != nil {
			refuse(http.StatusBadRequest, err)
			return
		}
		audit(&s.config.Log, name, sessionIn(r), "", func(line *zerolog.Event) {
			line.Int("done", out.Done).Int("failed", out.Failed).Strs("errors", out.Errors)
			if len(order.IDs) > 0 {
				line.Strs("rollouts", order.IDs[:min(len(order.IDs), maxLogged)]).Strs("new", out.New[:min(len(out.New), maxLogged)])
			} else {
				line.Uints64("dead", order.Seqs[:min(len(order.Seqs), maxLogged)])
			}
		})
		writeJSON(w, out)
	}
}

// rolloutsOf reads the ids of an order.
func rolloutsOf(o Order) ([]schema.ID, error) {
	var ids []schema.ID
	for _, text := range o.IDs {
		id, err := schema.ParseID(text)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// cancel asks the workers to end rollouts.
func (s *Server) cancel(_ context.Context, o Order, out *Outcome) error {
	ids, err := rolloutsOf(o)
	if err != nil {
		return err
	}
	of := map[string][]schema.ID{}
	for _, id := range ids {
		of[id.Trainer()] = append(of[id.Trainer()], id)
	}
	for _, tid := range slices.Sorted(maps.Keys(of)) {
		if err := s.operator.system.Cancel(tid, of[tid], s.table.seqs(of[tid]), "a user of the console asked for it"); err != nil {
			out.fail(len(of[tid]), err)
		} else {
			out.Done += len(of[tid])
		}
	}
	return nil
}

// retry submits the requests of ended rollouts again.
func (s *Server) retry(ctx context.Context, o Order, out *Outcome) error {
	ids, err := rolloutsOf(o)
	if err != nil {
		return err
	}
	for _, id := range ids {
		q, err := s.operator.system.Again(ctx, id)
		if err == nil {
			err = s.operator.system.Submit(ctx, q)
		}
		if err != nil {
			out.fail(1, fmt.Errorf("%s: %w", id, err))
			continue
		}
		out.Done++
		out.New = append(out.New, string(q.ID))
	}
	return nil
}

// requeue puts dead requests back where they came on.
func (s *Server) requeue(ctx context.Context, o Order, out *Outcome) error {
	if len(o.Seqs) == 0 {
		return errors.New("the order names no dead request")
	}
	defer s.operator.letters.forget()
	for _, seq := range o.Seqs {
		switch err := s.operator.system.Requeue(ctx, seq); {
		case errors.Is(err, operate.ErrNotFound):
			out.fail(1, fmt.Errorf("dead request %d is not there any more", seq))
		case err != nil:
			out.fail(1, err)
		default:
			out.Done++
		}
	}
	return nil
}
