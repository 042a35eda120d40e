package upstream

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// served caches the upstream's model and context for servedFor, because the
// upstream may be restarted with another model.
type served struct {
	mu      sync.Mutex
	model   string
	context int // tokens of prompt and completion together; 0: unknown
	at      time.Time
	asking  bool
}

const (
	// servedFor is the lifetime of the cached values.
	servedFor = time.Minute
	// servedWithin bounds the wait of a call that can go on without new values.
	servedWithin = 5 * time.Second
)

// recall returns the cached values. If stale, the caller must ask the upstream;
// with a cached model only one caller at a time gets stale.
func (s *served) recall(now time.Time) (model string, context int, stale bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stale = s.model == "" || now.Sub(s.at) > servedFor && !s.asking
	s.asking = s.asking || stale
	return s.model, s.context, stale
}

func (s *served) store(model string, context int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model, s.context, s.at, s.asking = model, context, time.Now(), false
}

// forget empties the cache, so the next call asks the upstream again.
func (s *served) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model, s.context, s.at, s.asking = "", 0, time.Time{}, false
}

// model returns the configured model, or the only one that the server lists,
// and its context in tokens, 0 if unknown.
func (u *Upstream) model(ctx context.Context) (name string, context int, err error) {
	name, context, stale := u.served.recall(time.Now())
	if !stale {
		return name, context, nil
	}
	if name == "" {
		name = u.cfg.Model
	}
	newer, length, err := u.list(ctx, name != "")
	switch {
	case err == nil:
		name, context = newer, length
	case name == "" || ctx.Err() != nil:
		u.served.forget()
		return "", 0, err
	}
	u.served.store(name, context)
	return name, context, nil
}

// list asks for the served model. brief limits the wait, for callers that can
// go on without the answer.
func (u *Upstream) list(ctx context.Context, brief bool) (name string, length int, err error) {
	if brief {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, servedWithin, errors.New("the list of models did not come"))
		defer cancel()
	}
	var list struct {
		Data *[]struct {
			ID     string `json:"id"`
			Length int    `json:"max_model_len"` // sent by vLLM and SGLang
		} `json:"data"`
	}
	if err := u.do(ctx, http.MethodGet, "/models", nil, &list); err != nil {
		return "", 0, err
	}
	if list.Data == nil {
		return "", 0, badAnswer("data: the list of models has none")
	}
	if u.cfg.Model == "" {
		if len(*list.Data) != 1 {
			return "", 0, fail(http.StatusServiceUnavailable, "it lists %d models: say which one with --model", len(*list.Data))
		}
		return (*list.Data)[0].ID, max((*list.Data)[0].Length, 0), nil
	}
	for _, m := range *list.Data {
		if m.ID == u.cfg.Model {
			length = max(m.Length, 0)
		}
	}
	return u.cfg.Model, length, nil
}

// lookedAt bounds a look at an upstream.
const lookedAt = 5 * time.Second

// Look returns the reason why no call can be answered, without a change at the upstream or in
// its configuration: it cannot be reached, is a server of another kind, refuses the key, or
// has not the one model. Nil: it may answer, or is starting or overloaded.
func (u *Upstream) Look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookedAt)
	defer cancel()
	_, _, err := u.list(ctx, false)
	var no *refusal
	var f *schema.Fault
	switch {
	case err == nil || ctx.Err() != nil:
		return nil
	case errors.As(err, &no):
		if no.status == http.StatusUnauthorized || no.status == http.StatusForbidden || u.cfg.Model == "" && otherServer(err) {
			return u.named(err)
		}
	case errors.As(err, &f):
		unreachable := f.Status == http.StatusServiceUnavailable // or it has not the one model
		if unreachable || otherServer(err) || u.cfg.Model == "" && f.Code == schema.CodeBadAnswer {
			return u.named(err)
		}
	}
	return nil
}
