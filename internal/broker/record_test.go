package broker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestARequestThatIsNeverAnsweredEnds: its caller may have no deadline.
func TestARequestThatIsNeverAnsweredEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		_, err := untilAnswered(context.WithoutCancel(t.Context()), func(ctx context.Context) (bool, error) {
			tries++
			<-ctx.Done()
			return false, ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) || tries < 2 {
			t.Errorf("%v after %d tries", err, tries)
		}
	})
}
