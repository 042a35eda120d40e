package front

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Bounds of a submit.
const (
	maxSubmit   = broker.MaxBatch // rollouts of one request
	maxQueued   = 32 << 20        // bytes of them in the queue
	maxKey      = 256             // bytes of an Idempotency-Key
	maxSearched = 2000            // oldest messages of the queue among which a rollout is looked for
	lookedAt    = 16              // records that are read at once
	lookedBytes = 4 << 20         // and bytes of them: a server drops a connection with more that wait
)

// submission is the body of POST /v1/rollouts.
type submission struct {
	Requests []schema.Request `json:"requests"`
	Lane     *int             `json:"lane,omitempty"` // default subjects.DefaultLane
}

// groupSubmission is the body of POST /v1/groups.
type groupSubmission struct {
	Group   string         `json:"group,omitempty"`
	N       int            `json:"n"`
	Request schema.Request `json:"request"`
	Lane    *int           `json:"lane,omitempty"`
}

// submitted is the answer to both.
type submitted struct {
	Group string      `json:"group,omitempty"`
	IDs   []schema.ID `json:"ids"`
	// Known is the number of rollouts that were submitted before, and that this request
	// did not submit again.
	Known int `json:"known"`
}

// keyOf returns the Idempotency-Key; empty: there is none.
func keyOf(r *http.Request) (string, error) {
	key := r.Header.Get("Idempotency-Key")
	if len(key) > maxKey {
		return "", invalidField("Idempotency-Key", key, fmt.Sprintf("want at most %d bytes", maxKey))
	}
	return key, nil
}

// submit submits rollouts. The rollouts of one group, or all rollouts without a group, are
// adjacent and are queued all or none.
func (s *Server) submit(w http.ResponseWriter, r *http.Request, t *tenant) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	var body submission
	if err := read(w, r, &body); err != nil {
		return err
	}
	if n := len(body.Requests); n == 0 || n > maxSubmit {
		return invalidField("requests", strconv.Itoa(n)+" requests", fmt.Sprintf("want 1 to %d", maxSubmit))
	}
	named := key != ""
	for i := range body.Requests {
		q := &body.Requests[i]
		named = named || q.ID != ""
		if q.ID == "" {
			name := ulid.Make().String()
			if key != "" {
				name = fmt.Sprintf("key %d %s", i, key)
				label(q, len(body.Requests), body.Lane)
			}
			if q.ID, err = nameID(t.name, name); err != nil {
				return err
			}
		}
	}
	out, err := s.put(r.Context(), t, batch{body.Requests, body.Lane, "requests[%d]", named})
	if err != nil {
		return err
	}
	return reply(w, http.StatusAccepted, out)
}

// submitGroup submits n rollouts of one request as a group. Their ids come from the name of
// the group, so that the same group is submitted once.
func (s *Server) submitGroup(w http.ResponseWriter, r *http.Request, t *tenant) error {
	key, err := keyOf(r)
	if err != nil {
		return err
	}
	var body groupSubmission
	if err := read(w, r, &body); err != nil {
		return err
	}
	if body.N < 1 || body.N > maxSubmit {
		return invalidField("n", strconv.Itoa(body.N), fmt.Sprintf("want 1 to %d", maxSubmit))
	}
	for field, value := range map[string]string{"request.id": string(body.Request.ID), "request.group": body.Request.Group} {
		if value != "" {
			return invalidField(field, value, "a group gives each rollout its own: leave it out")
		}
	}
	if body.Request.Index != 0 {
		return invalidField("request.index", strconv.Itoa(body.Request.Index), "a group gives each rollout its own: leave it out")
	}
	named := key != "" || body.Group != ""
	if body.Group == "" {
		body.Group = ulid.Make().String()
		if key != "" {
			id, err := nameID(t.name, "group of "+key)
			if err != nil {
				return err
			}
			body.Group = string(id)
			label(&body.Request, body.N, body.Lane)
		}
	}
	requests := make([]schema.Request, body.N)
	for i := range requests {
		requests[i] = body.Request
		requests[i].Group, requests[i].Index = body.Group, i
		if requests[i].ID, err = nameID(t.name, fmt.Sprintf("group %d %s", i, body.Group)); err != nil {
			return err
		}
	}
	out, err := s.put(r.Context(), t, batch{requests, body.Lane, "request", named})
	if err != nil {
		return err
	}
	out.Group = body.Group
	return reply(w, http.StatusAccepted, out)
}

// submissionLabel is the label of rollouts whose ids come from an Idempotency-Key alone: the
// number of rollouts that were submitted together, and their lane. Neither is in another
// part of a request, so that the same key with others of them is a conflict.
const submissionLabel = "submission"

func label(q *schema.Request, n int, lane *int) {
	q.Labels = maps.Clone(q.Labels)
	if q.Labels == nil {
		q.Labels = map[string]string{}
	}
	q.Labels[submissionLabel] = fmt.Sprintf("%d in lane %d", n, laneOf(lane))
}

// laneOf returns the lane of a submit that may name one.
func laneOf(lane *int) int {
	if lane == nil {
		return subjects.DefaultLane
	}
	return *lane
}

// nameID returns the id of a rollout for a name, the same for the same name. The hash of the
// name keeps ids of one kind from meeting ids of another.
func nameID(trainer, name string) (schema.ID, error) {
	return schema.NewID(trainer, "turngate serve\n"+name) // a new line is in no token, so this is hashed
}

// batch has the requests of one submit.
type batch struct {
	requests []schema.Request
	lane     *int   // nil: subjects.DefaultLane
	field    string // path of a request in the body
	named    bool   // an id was chosen by the client, so it may be in use
}

// at returns the path of a request in the body.
func (b *batch) at(i int) string {
	if b.field == "request" {
		return b.field
	}
	return fmt.Sprintf(b.field, i)
}

// put checks requests and puts those on the queue that were not submitted before.
func (s *Server) put(ctx context.Context, t *tenant, b batch) (*submitted, error) {
	requests, lane := b.requests, b.lane
	if lane != nil && (*lane < 0 || *lane >= subjects.Lanes) {
		return nil, invalidField("lane", strconv.Itoa(*lane), fmt.Sprintf("want 0 to %d", subjects.Lanes-1))
	}
	out := &submitted{IDs: make([]schema.ID, len(requests))}
	seen := map[schema.ID]bool{}
	for i := range requests {
		q, at := &requests[i], b.at(i)
		if q.Trainer == "" {
			q.Trainer = t.name
		}
		q.V = cmp.Or(q.V, schema.Version)
		if err := schema.Validate(q); err != nil {
			return nil, within(at, err)
		}
		switch {
		case q.V != schema.Version:
			return nil, invalidField(at+".v", strconv.Itoa(q.V), fmt.Sprintf("want %d, or none", schema.Version))
		case q.Trainer != t.name || q.ID.Trainer() != t.name:
			return nil, invalidField(at+".id", string(q.ID), "want an id of trainer "+t.name+", or none")
		case seen[q.ID]:
			return nil, invalidField(at+".id", string(q.ID), "want another id for each request")
		}
		seen[q.ID], out.IDs[i] = true, q.ID
	}
	sizes, err := b.sizes()
	if err != nil {
		return nil, err
	}
	looks := looksAtOnce(sizes)
	l, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	fresh := requests
	if b.named {
		if fresh, err = l.fresh(ctx, requests, looks); err != nil {
			return nil, err
		}
	}
	out.Known = len(requests) - len(fresh)
	if len(fresh) == 0 {
		return out, nil
	}
	if at, err := l.queue.CheckOffered(ctx, fresh); err != nil {
		return nil, within(b.at(slices.Index(out.IDs, fresh[at].ID)), err)
	}
	size, err := b.room(fresh, sizes)
	if err != nil {
		return nil, err
	}
	if !t.memory.TryAcquire(size) {
		return nil, busy(fmt.Sprintf("the requests of this trainer have %d MiB of this front's memory: wait for their answers", maxMemory>>20))
	}
	defer t.memory.Release(size)
	op, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	seqs, err := l.queue.Submit(op, laneOf(lane), fresh)
	if err == nil && b.named {
		err = l.confirm(op, fresh, seqs, looks)
	}
	return out, err
}

// sizes returns the number of bytes that each request has in the queue.
func (b *batch) sizes() (map[schema.ID]int, error) {
	sizes := make(map[schema.ID]int, len(b.requests))
	size := 0
	for i := range b.requests {
		if q := &b.requests[i]; i == 0 || b.field != "request" { // those of a group are alike
			data, err := schema.Encode(q)
			if err != nil {
				return nil, fmt.Errorf("submit %s: %w", q.ID, err)
			}
			size = len(data)
		}
		sizes[b.requests[i].ID] = size
	}
	return sizes, nil
}

// looksAtOnce returns the number of records of requests of these sizes that are read at once.
func looksAtOnce(sizes map[schema.ID]int) int {
	largest := 1
	for _, size := range sizes {
		largest = max(largest, size)
	}
	return min(max(1, lookedBytes/largest), lookedAt)
}

// room returns the number of bytes of requests. More than maxQueued are an error: the broker
// has all of them in memory at once.
func (b *batch) room(requests []schema.Request, sizes map[schema.ID]int) (int64, error) {
	sum := 0
	for i := range requests {
		sum += sizes[requests[i].ID]
	}
	switch size := sizes[requests[0].ID]; {
	case sum <= maxQueued:
		return int64(sum), nil
	case b.field == "request":
		return 0, invalidField("n", strconv.Itoa(len(requests)), fmt.Sprintf("want at most %d rollouts of a request of %d bytes at once: add more to the group by another request with its name", max(1, maxQueued/size), size))
	}
	return 0, invalidField("requests", fmt.Sprintf("%d requests", len(requests)), fmt.Sprintf("want at most %d MiB of them at once", maxQueued>>20))
}

// confirm returns a conflict if the queue has another request in the place of one of these:
// it was submitted at the same time, and the queue keeps the first one of an id.
func (l *line) confirm(ctx context.Context, requests []schema.Request, seqs []uint64, looks int) error {
	all, op := errgroup.WithContext(ctx)
	all.SetLimit(looks)
	for i := range requests {
		all.Go(func() error {
			q := &requests[i]
			has, err := l.queue.RequestAt(op, q.ID, seqs[i])
			if errors.Is(err, broker.ErrNotFound) { // a worker has it already
				has, err = l.b.Records.Request(op, q.ID)
			}
			var bad *broker.UnreadableRecord
			if errors.Is(err, broker.ErrNotFound) || errors.As(err, &bad) {
				return nil
			}
			if err != nil {
				return err
			}
			return sameAs(&has, q)
		})
	}
	return all.Wait()
}

// within names the field of an error inside a request.
func within(at string, err error) error {
	var invalid *schema.InvalidError
	if errors.As(err, &invalid) {
		return &schema.InvalidError{Field: at + "." + invalid.Field, Value: invalid.Value, Want: invalid.Want}
	}
	return err
}

// fresh returns the requests that were not submitted before. One that was, with other
// content, is a conflict.
func (l *line) fresh(ctx context.Context, requests []schema.Request, looks int) ([]schema.Request, error) {
	known := make([]bool, len(requests))
	all, op := errgroup.WithContext(ctx)
	all.SetLimit(looks)
	for i := range requests {
		all.Go(func() error {
			_, err := l.b.Records.State(op, requests[i].ID)
			if errors.Is(err, broker.ErrNotFound) {
				return nil
			}
			var bad *broker.UnreadableRecord
			if err != nil && !errors.As(err, &bad) {
				return err
			}
			known[i] = true
			before, err := l.b.Records.Request(op, requests[i].ID)
			if errors.Is(err, broker.ErrNotFound) || errors.As(err, &bad) {
				return nil
			}
			if err != nil {
				return err
			}
			return sameAs(&before, &requests[i])
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	if err := l.queued(ctx, requests, known); err != nil {
		return nil, err
	}
	fresh := slices.Clone(requests)
	i := -1
	return slices.DeleteFunc(fresh, func(schema.Request) bool { i++; return known[i] }), nil
}

// queued marks the requests that are in the queue.
func (l *line) queued(ctx context.Context, requests []schema.Request, known []bool) error {
	missing := map[schema.ID]int{}
	for i := range requests {
		if !known[i] {
			missing[requests[i].ID] = i
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var once sync.Once
	var differs error
	_, err := l.b.Records.Waiting(ctx, requests[0].Trainer, 0, maxSearched, func(q *schema.Request) bool {
		i, ok := missing[q.ID]
		if ok {
			known[i] = true
			delete(missing, q.ID)
			if err := sameAs(q, &requests[i]); err != nil {
				once.Do(func() { differs = err })
			}
		}
		return len(missing) > 0
	})
	return cmp.Or(err, differs)
}

// sameAs returns a conflict unless a rollout was submitted with this request.
func sameAs(before, now *schema.Request) error {
	a, b := before.WithDefaults(), now.WithDefaults() // a worker keeps a request with them
	for _, q := range []*schema.Request{&a, &b} {
		q.AttemptFloor, q.DelayMS = 0, 0 // workers change them
	}
	one, err := json.Marshal(&a)
	if err != nil {
		return err
	}
	other, err := json.Marshal(&b)
	if err != nil {
		return err
	}
	if !bytes.Equal(one, other) {
		return problemf(http.StatusConflict, codeConflict, fmt.Sprintf("%s was submitted before with another request: use another Idempotency-Key, group or id", now.ID))
	}
	return nil
}
