package trainer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// TestAWipedStoreIsSeenAtOnce deletes the trainer's streams while its rollouts wait.
// The audit by age does not run.
func TestAWipedStoreIsSeenAtOnce(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t, func(c *trainer.Config) { c.AuditEvery = time.Hour })
	for n := range 3 {
		b.submitOne(t, schema.ID(fmt.Sprintf("alpha-%d", n)))
	}
	js := b.jetStream(t)
	for _, stream := range subjects.StreamsOf("alpha") {
		harness.Must(t, js.DeleteStream(t.Context(), stream))
	}
	seen := map[schema.ID]bool{}
	for len(seen) < 3 {
		seen[b.run(t)] = true
	}
	for range 3 {
		if _, err := b.trainer.NextResult(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
