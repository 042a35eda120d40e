package trainer

import (
	"context"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
)

// TestAResultMayArriveDuringAnAdoption: its hint comes after the state of the rollout was
// read, and before the rollout is outstanding.
func TestAResultMayArriveDuringAnAdoption(t *testing.T) {
	t.Parallel()
	b := &base{cfg: Config{Log: zerolog.Nop()}}
	b.life, b.stop = context.WithCancelCause(t.Context())
	tr := newTrainer(b, &ledger{})
	defer tr.Close()
	tr.endings.hint("alpha-1")
	if err := tr.adopter.keep(&submitted{request: schema.Request{ID: "alpha-1"}, attempt: 1}, schema.StatusRunning); err != nil {
		t.Fatal(err)
	}
	if id, ok := tr.outstanding.hints.take(""); !ok || id != "alpha-1" {
		t.Errorf("the result of %q is looked for: %v", id, ok)
	}
}

// TestARolloutOfThisProcessIsNoOrphan: a call came before the rollout was adopted, and the
// look for its request ends after.
func TestARolloutOfThisProcessIsNoOrphan(t *testing.T) {
	t.Parallel()
	b := &base{cfg: Config{Log: zerolog.Nop(), Orphans: CancelOrphans}}
	b.life, b.stop = context.WithCancelCause(t.Context())
	tr := newTrainer(b, &ledger{})
	defer tr.Close()
	tr.outstanding.add(&submitted{request: schema.Request{ID: "alpha-1"}})
	for _, id := range []schema.ID{"alpha-1", "alpha-2"} {
		if err := tr.orphans.take(t.Context(), schema.Request{ID: id}, 2, 7); err != nil {
			t.Fatal(err)
		}
	}
	if got := tr.cancels.orphans; len(got) != 1 || got["alpha-2"] != 7 {
		t.Errorf("%v are cancelled", got)
	}
}
