package recorded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// FormatHarbor is the format of ExportJob.
const FormatHarbor = "harbor"

// ExportJob writes rollouts of a running system into the folder of a new job, in
// Harbor's layout. It leaves out a rollout that has not ended and names it in
// Summary.Skipped. The rollouts must have one sandbox, as a job
// has.
func ExportJob(ctx context.Context, dir string, list []*Rollout) (sum Summary, err error) {
	var backend string
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
		own, in, err := r.ended(ctx)
		if err != nil {
			return sum, err
		}
		if len(ended) == 0 {
			backend = in
		} else if in != backend {
			return sum, fmt.Errorf("%s has the sandbox %q, and %s has %q: export them separately", from[0].Name(), backend, r.Name(), in)
		}
		ended, from = append(ended, own), append(from, r)
	}
	if len(ended) == 0 {
		return sum, nil
	}
	p := jobs.Plan{Backend: backend, Parallel: 1, Flags: map[string][]string{}, Args: []string{}}
	p.AddEnded(ended)
	j, err := jobs.Create(dir, p)
	if err != nil {
		return sum, err
	}
	defer j.Close()
	for _, r := range from {
		fetch := func(ctx context.Context, a schema.Artifact, to io.Writer) error {
			return r.from.Objects.CopyArtifact(ctx, r.Result.Trainer, a.SHA256, to)
		}
		if err := j.Put(ctx, *r.Result, fetch); err != nil {
			return sum, err
		}
		sum.Rollouts++
	}
	return sum, j.WriteResult(true)
}

// ended reads the settings of a rollout that has ended, and the backend of its sandbox.
// A rollout that no worker took has no stored request.
func (r *Rollout) ended(ctx context.Context) (_ jobs.Ended, backend string, err error) {
	q, err := r.from.Records.Request(ctx, r.ID)
	if err != nil && !errors.Is(err, broker.ErrNotFound) {
		return jobs.Ended{}, "", err
	}
	v := jobs.Variant{Agent: cmp.Or(q.Agent.Name, r.Result.Agent, "unknown"), Model: cmp.Or(q.Model.Upstream, q.Model.Name)}
	return jobs.Ended{Variant: v, Result: r.Result, Digest: q.Task.Bundle}, cmp.Or(q.Sandbox.Backend, "unknown"), nil
}
