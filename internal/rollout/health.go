package rollout

import (
	"context"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// healthy runs a health check until it passes once. If it fails Retries times
// in a row after the start period, it returns a fault of the task.
func (r *Rollout) healthy(ctx context.Context, name string, check *schema.Healthcheck, user string) error {
	if check == nil {
		return nil
	}
	h := check.WithDefaults()
	return r.phase(ctx, name, 0, func(ctx context.Context, p *record.Phase) error {
		begin, stood := time.Now(), r.clock.suspendedFor()
		for failures := 0; ; {
			age := time.Since(begin) - (r.clock.suspendedFor() - stood)
			exit, err := r.command(ctx, r.sandbox, p, sandboxes.Cmd{Args: bash(h.Run), User: user, Timeout: ms(h.TimeoutMS)})
			if err != nil || exit.OK() {
				return err
			}
			pause := ms(h.StartIntervalMS)
			if age >= ms(h.StartPeriodMS) {
				pause = ms(h.IntervalMS)
				if failures++; failures >= h.Retries {
					return ends.Fail(schema.Faultf("healthcheck", schema.CodeSetup, schema.WhoTask, "%s of %q, after %d failures in a row: %s",
						exit, schema.Clip(h.Run, 200), failures, schema.Clip(p.Tail(), 2000)))
				}
			}
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return context.Cause(ctx)
			}
		}
	})
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
