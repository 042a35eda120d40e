package modelcall

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/turngate/turngate/schema"
)

// answered lists calls that are answered: the worker has the answers. Each later
// call carries their numbers to the trainer, which then need not keep the answers.
type answered struct {
	mu      sync.Mutex
	attempt int
	calls   []int
}

// maxAnswered bounds the numbers in one header. The result covers the others.
const maxAnswered = 256

// drain removes and returns the numbers for a call of an attempt.
func (s *answered) drain(attempt int) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.calls
	if s.calls = nil; s.attempt != attempt {
		return nil
	}
	return all
}

// add adds numbers of an attempt.
func (s *answered) add(attempt int, calls ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attempt != attempt {
		s.attempt, s.calls = attempt, nil
	}
	s.calls = append(s.calls, calls...)
	if more := len(s.calls) - maxAnswered; more > 0 {
		s.calls = slices.Delete(s.calls, 0, more)
	}
}

// answeredHeader is the value of the header for these calls.
func answeredHeader(calls []int) string {
	b := make([]byte, 0, 8*len(calls))
	for i, n := range calls {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(b)
}

// parseAnswered reads the header. It skips every part that is not a number.
func parseAnswered(value string) []int {
	if value == "" {
		return nil
	}
	var out []int
	for part := range strings.SplitSeq(value, ",") {
		if n, err := schema.ParseCount("Rl-Settled", part); err == nil && len(out) < maxAnswered {
			out = append(out, n)
		}
	}
	return out
}
