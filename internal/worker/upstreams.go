package worker

import (
	"slices"

	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/internal/rollout/models"
)

// withLines returns the upstreams, each with a bound on its repeated log lines.
func withLines(all []models.Upstream) []models.Upstream {
	all = slices.Clone(all)
	for i := range all {
		all[i].Lines = &quiet.Lines{}
	}
	return all
}
