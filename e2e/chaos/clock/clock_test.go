package clock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/clock"
)

func TestStepMovesTheWallClockAlone(t *testing.T) {
	before := time.Now()
	for _, d := range []time.Duration{time.Hour, -3 * time.Hour} {
		if err := clock.Step(d); errors.Is(err, clock.ErrUnsupported) {
			t.Skipf("SKIPPED: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if err := clock.Step(2 * time.Hour); err != nil {
			t.Error(err)
		}
	}()
	after := time.Now()
	if wall := after.Round(0).Sub(before.Round(0)); wall > -2*time.Hour+time.Minute || wall < -2*time.Hour {
		t.Errorf("the wall clock has moved by %s", wall)
	}
	if d := after.Sub(before); d < 0 || d > time.Minute {
		t.Errorf("the monotonic clock has moved by %s", d)
	}
}
