package trainer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestANameThatWasUsedIsRefused submits a group of one name again: while it is
// outstanding, while it waits in the queue and after its end, from another process.
func TestANameThatWasUsedIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	group := func(task string) []schema.Request {
		a, c := harness.Request("alpha-step1-0"), harness.Request("alpha-step1-1")
		a.Group, c.Group, a.Task.Name, c.Task.Name = "step-1", "step-1", task, task
		return []schema.Request{a, c}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	harness.Must(t, b.trainer.SubmitNew(ctx, group("one")))
	check := func(when string, tr *trainer.Trainer) {
		t.Helper()
		var used *trainer.ExistsError
		err := tr.SubmitNew(ctx, group("two"))
		if !errors.As(err, &used) || time.Since(used.At) > time.Minute || !strings.Contains(err.Error(), `group: "step-1" was submitted before, at `) {
			t.Errorf("%s: %v", when, err)
		}
	}
	check("outstanding", b.trainer)
	b.trainer.Close()
	second := b.start(t)
	check("in the queue", second)
	b.run(t)
	b.run(t)
	check("ended", second)
	if n := second.Outstanding(); n != 0 {
		t.Errorf("%d are outstanding", n)
	}
}
