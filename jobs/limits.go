package jobs

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/turngate/turngate/schema"
)

// Limits bound the spending of all rollouts of a job. Above a limit no rollout begins.
// The ones that have begun go on to their ends, and may spend more.
type Limits struct {
	CostUSD float64 // of model calls, and of rollouts' sandboxes where that is known; 0: none
	Tokens  int64   // of prompts and completions; 0: none
}

// LimitError reports that a limit ended a run before all trials had a result.
type LimitError struct{ Reason string }

func (e *LimitError) Error() string { return e.Reason }

// amount is a number of tokens with their cost.
type amount struct {
	tokens   int64
	cost     float64
	unpriced bool // the cost of a call is not known
}

func (a *amount) add(tokens int64, cost *float64) {
	a.tokens += tokens
	if cost != nil {
		a.cost += *cost
	} else if tokens > 0 {
		a.unpriced = true
	}
}

// spending has the tokens and costs of a job so far.
type spending struct {
	limits Limits

	mu    sync.Mutex
	ended amount                // of rollouts with a result
	open  map[schema.ID]*amount // of calls that this process answered, for the other rollouts
}

func newSpending(l Limits, results []schema.Result) *spending {
	s := &spending{limits: l, open: map[schema.ID]*amount{}}
	for i := range results {
		s.result(&results[i])
	}
	return s
}

// call adds an answered call.
func (s *spending) call(id schema.ID, u *schema.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[id] == nil {
		s.open[id] = &amount{}
	}
	s.open[id].add(u.PromptTokens+u.CompletionTokens, u.CostUSD)
	s.open[id].unpriced = s.open[id].unpriced || u.CostUSD == nil // also without counts of tokens
}

// result adds a rollout that has ended. Its result has the calls of its last attempt
// only, so its answered calls may be more.
func (s *spending) result(r *schema.Result) {
	var own amount
	own.add(r.Tokens(), r.CostUSD())
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.open[r.ID]; o != nil {
		own = amount{max(own.tokens, o.tokens), max(own.cost, o.cost), own.unpriced || o.unpriced}
		delete(s.open, r.ID)
	}
	if u := r.Usage; u != nil && u.SandboxUSD != nil {
		own.cost += *u.SandboxUSD
	}
	s.ended.tokens += own.tokens
	s.ended.cost += own.cost
	s.ended.unpriced = s.ended.unpriced || own.unpriced
}

// over returns an error if a limit is reached, or if the cost is not known and has a
// limit. It has no amounts: rollouts that run end after it, and add to them.
func (s *spending) over() *LimitError {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.ended
	for _, o := range s.open {
		all.tokens += o.tokens
		all.cost += o.cost
		all.unpriced = all.unpriced || o.unpriced
	}
	switch {
	case s.limits.CostUSD > 0 && all.unpriced:
		return &LimitError{"the cost of a model call is not known, and the cost of the job has a limit: its upstream needs a price"}
	case s.limits.CostUSD > 0 && all.cost >= s.limits.CostUSD:
		return &LimitError{fmt.Sprintf("the cost of its model calls and sandboxes has reached its limit of %s USD", strconv.FormatFloat(s.limits.CostUSD, 'f', -1, 64))}
	case s.limits.Tokens > 0 && all.tokens >= s.limits.Tokens:
		return &LimitError{fmt.Sprintf("the tokens of its model calls have reached its limit of %d", s.limits.Tokens)}
	default:
		return nil
	}
}
