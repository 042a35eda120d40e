package recorded

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// FormatHarbor is the format of ExportJob.
const FormatHarbor = "harbor"

// settings are the settings that all trials of a job share.
type settings struct{ agent, model, backend string }

// ExportJob writes rollouts of a running system into the folder of a new job, in
// Harbor's layout. It leaves out a rollout that has not ended and names it in
// Summary.Skipped. The rollouts must have one agent, one model and one sandbox, as a
// job has.
func ExportJob(ctx context.Context, dir string, list []*Rollout) (sum Summary, err error) {
	var all settings
	var ended []jobs.Ended
	var from []*Rollout
	seen := map[schema.ID]bool{}
	for _, r := range list {
		if seen[r.ID] {
			continue
		}
		seen[r.ID] = true
		if !r.OfSystem() {
			return sum, fmt.Errorf("%s: the folder of its job %s has this format already", r.Name(), r.Job)
		}
		if r.Result == nil {
			sum.Skipped = append(sum.Skipped, fmt.Errorf("%s is left out: it has not ended", r.Name()))
			continue
		}
		own, digest, err := r.settings(ctx)
		if err != nil {
			return sum, err
		}
		if len(ended) == 0 {
			all = own
		} else if own != all {
			return sum, fmt.Errorf("%s has the agent, model and sandbox %q, and %s has %q: export them separately", from[0].Name(), all, r.Name(), own)
		}
		ended, from = append(ended, jobs.Ended{Result: r.Result, Digest: digest}), append(from, r)
	}
	if len(ended) == 0 {
		return sum, nil
	}
	p := jobs.Plan{Agent: all.agent, Model: all.model, Backend: all.backend, Parallel: 1, Flags: map[string][]string{}, Args: []string{}}
	p.AddEnded(ended)
	j, err := jobs.Create(dir, p)
	if err != nil {
		return sum, err
	}
	defer j.Close()
	for _, r := range from {
		fetch := func(ctx context.Context, a schema.Artifact) ([]byte, error) {
			return r.from.Objects.Artifact(ctx, r.Result.Trainer, a.SHA256)
		}
		if err := j.Put(ctx, *r.Result, fetch); err != nil {
			return sum, err
		}
		sum.Rollouts++
	}
	return sum, j.Tell(true)
}

// settings reads the settings of a rollout that has ended, and the sha256 of its
// task's bundle. A rollout that no worker took has no stored request.
func (r *Rollout) settings(ctx context.Context) (settings, string, error) {
	q, err := r.from.Records.Request(ctx, r.ID)
	if err != nil && !errors.Is(err, broker.ErrNotFound) {
		return settings{}, "", err
	}
	return settings{cmp.Or(q.Agent.Name, r.Result.Agent, "unknown"), q.Model.Name, cmp.Or(q.Sandbox.Backend, "unknown")}, q.Task.Bundle, nil
}
