package stage

import (
	"testing"
	"time"
)

// TestAWatchStandsStillWhileTheRolloutIsSuspended: every limit of time is measured by
// a watch.
func TestAWatchStandsStillWhileTheRolloutIsSuspended(t *testing.T) {
	var c Clock
	start := time.Now()
	ran := c.Watch()
	c.set(true)
	<-time.After(20 * time.Millisecond)
	for _, suspended := range []bool{true, false} {
		c.set(suspended)
		stood := c.SuspendedFor()
		if got := ran(); got > time.Since(start)-stood || got < 0 || stood < 20*time.Millisecond {
			t.Errorf("suspended %v: the watch shows %s after %s, of which the rollout stood still for %s", suspended, got, time.Since(start), stood)
		}
	}
}
