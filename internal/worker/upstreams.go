package worker

import (
	"context"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/schema"
)

// logged returns upstreams that log the faults of their answers.
func logged(all []models.Upstream, log zerolog.Logger) []models.Upstream {
	all = slices.Clone(all)
	for i := range all {
		up := all[i]
		var lines quiet.Lines
		all[i].Answer = func(ctx context.Context, c *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
			reply, err := up.Answer(ctx, c, emit)
			if err == nil || ctx.Err() != nil {
				return reply, err
			}
			if skipped, speak := lines.Speak(err.Error(), time.Now()); speak {
				log.Warn().Err(err).Str("upstream", up.Name).Str("call", c.Key).Int("repeated", skipped).Msg("an upstream did not answer a call")
			}
			return reply, err
		}
	}
	return all
}
