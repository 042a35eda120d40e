package hosted_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turngate/turngate/internal/backends/hosted"
)

// TestPollEndsWithARefusal: a connection that breaks, 429 and 5xx are waited for, until the
// context ends.
func TestPollEndsWithARefusal(t *testing.T) {
	broken := errors.New("connection reset")
	refused := func(status int) error { return &hosted.RefusedError{Service: "E2B", Status: status} }
	forbidden := refused(403)
	synctest.Test(t, func(t *testing.T) {
		answers := []error{broken, refused(429), refused(503), nil, forbidden}
		calls := 0
		err := hosted.Poll(t.Context(), func() (bool, error) {
			calls++
			return false, answers[calls-1]
		})
		if !errors.Is(err, forbidden) || calls != len(answers) {
			t.Errorf("%d calls, %v", calls, err)
		}
		if err := hosted.Poll(t.Context(), func() (bool, error) { return true, broken }); !errors.Is(err, broken) {
			t.Errorf("at its end: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := hosted.Poll(short, func() (bool, error) { return false, broken }); !errors.Is(err, broken) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without an end: %v", err)
		}
	})
}
