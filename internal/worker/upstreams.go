package worker

import (
	"slices"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/internal/rollout/models"
)

// withLines returns upstreams whose rollouts log the same failure of one seldom.
func withLines(all []models.Upstream) []models.Upstream {
	all = slices.Clone(all)
	for i := range all {
		all[i].Lines = &quiet.Lines{}
	}
	return all
}
