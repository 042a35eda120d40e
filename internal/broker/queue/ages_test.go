package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestAgesThatAreNotAnswered asks for the ages of twelve removed trainers with four lanes
// each, one after the other, and then for the age of a trainer with lanes that the server
// answers.
func TestAgesThatAreNotAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := ages{silent: map[string]time.Time{}}
		asked := 0
		never := func(ctx context.Context) (time.Time, error) {
			asked++
			<-ctx.Done()
			return time.Time{}, ctx.Err()
		}
		stored := time.Now()
		answer := func(context.Context) (time.Time, error) { return stored, nil }
		scrape := func() (took time.Duration, questions int) {
			begin, before := time.Now(), asked
			ctx, cancel := context.WithTimeout(t.Context(), agesWithin)
			defer cancel()
			for _, trainer := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"} {
				for range 4 {
					if at, unknown := a.read(ctx, trainer, never); !unknown || !at.IsZero() {
						t.Errorf("an age of %s: %s", trainer, at)
					}
				}
			}
			return time.Since(begin), asked - before
		}
		for range 20 {
			if took, questions := scrape(); took > agesWithin || questions > 3 { // two that last, and one at the moment in which the time is over
				t.Errorf("a scrape took %s for %d questions", took, questions)
			}
		}
		if took, questions := scrape(); took != 0 || questions != 0 {
			t.Errorf("the same lanes were asked for again: %s, %d", took, questions)
		}
		if at, unknown := a.read(t.Context(), "z", answer); unknown || at != stored {
			t.Errorf("got %s, unknown: %v", at, unknown)
		}
		if _, unknown := a.read(t.Context(), "z", func(context.Context) (time.Time, error) { return time.Time{}, errors.New("refused") }); !unknown {
			t.Error("an error is an age")
		}
		if at, unknown := a.read(t.Context(), "z", answer); unknown || at != stored {
			t.Errorf("after an answer that was an error: %s, unknown: %v", at, unknown)
		}
		a.silent["a"] = time.Now().Add(-unansweredFor)
		if at, unknown := a.read(t.Context(), "a", answer); unknown || at != stored {
			t.Errorf("after %s: %s, unknown: %v", unansweredFor, at, unknown)
		}
	})
}
