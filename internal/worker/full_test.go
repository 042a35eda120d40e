package worker_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/sandboxes/dummy"
	"github.com/turngate/turngate/schema"
)

// A rollout without room for its files ends in a result that says so. Running it
// again would not help.
func TestARolloutEndsAlthoughItsTrainersBucketIsFull(t *testing.T) {
	t.Parallel()
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}))
	if err := b.nats.Worker(t, "setup2").Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxArtifactBytes: 100}); err != nil {
		t.Fatal(err)
	}
	res := b.result(t, request("alpha-1"))
	if res.Status != schema.StatusDone || res.Attempt != 1 || res.Reward == nil || res.Fault == nil || res.Fault.Code != schema.CodeFull || len(res.Artifacts) != 0 {
		t.Fatalf("got %+v", res)
	}
	if !slices.ContainsFunc(res.Notes, func(n string) bool {
		return strings.Contains(n, "was not kept: the artifacts of trainer alpha have reached their bound of 100 bytes")
	}) {
		t.Fatalf("notes: %q", res.Notes)
	}
}
