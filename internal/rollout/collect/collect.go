// Package collect keeps the files that an agent has left, as artifacts of its rollout and for a
// separate verifier.
package collect

import (
	"context"
	"path"

	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/schema"
)

// Step runs the task's hooks, then end, which ends the agent's processes, and keeps the
// agent's logs and sessions and the artifacts of the rules. It returns the artifacts for
// a separate verifier, which the caller closes, also after an error. A missing or too large
// artifact adds a note and does not fail the step; only artifacts beyond maxRestored do.
func Step(ctx context.Context, p *place.Place, s *plan.Step, log *record.AgentLog, end func(context.Context) error) ([]Kept, error) {
	main, others := hooks(s)
	// Hooks may inspect processes that the agent left running.
	if err := runHooks(ctx, p, s, main); err != nil {
		return nil, err
	}
	c := newCollection(p, s)
	limit := p.Request.Limits.VerifyMS + place.StoreGrace.Milliseconds()
	err := p.Stages.Run(ctx, s.Phase("artifacts"), limit, func(ctx context.Context, _ *record.Phase) error {
		if err := end(ctx); err != nil {
			return err
		}
		if err := keepLogs(ctx, p, s, log); err != nil {
			return err
		}
		if err := c.rules(ctx, true); err != nil || len(others) > 0 {
			return err
		}
		return c.finish(ctx)
	})
	if err != nil || len(others) == 0 {
		return c.kept, err
	}
	if err := runHooks(ctx, p, s, others); err != nil {
		return c.kept, err
	}
	err = p.Stages.Run(ctx, s.Phase("artifacts/services"), limit, func(ctx context.Context, _ *record.Phase) error { return c.finish(ctx) })
	return c.kept, err
}

// keepLogs keeps the agent's output, its logs and its session files.
func keepLogs(ctx context.Context, p *place.Place, s *plan.Step, log *record.AgentLog) error {
	rec := p.Stages.Record
	if err := log.Keep(ctx, rec, s.Artifact); err != nil {
		return err
	}
	wanted := []schema.ArtifactRule{{Source: place.AgentLogs, Destination: "logs/agent"}}
	if at := p.Agent.Sessions; at != "" {
		wanted = append(wanted, schema.ArtifactRule{Source: path.Join(place.AgentDir, at), Destination: "agent-sessions"})
	}
	for _, w := range wanted {
		found, err := read(ctx, rec, p.Main.Files(), w.Source, nil, false)
		if err != nil {
			return err
		}
		if found.file == nil {
			if found.status == "failed" && !found.missing {
				rec.Note("%s was not kept: %s", w.Source, found.why)
			}
			continue
		}
		if err := rec.KeepFile(ctx, s.Artifact(found.name(w.Destination)), found.file); err != nil {
			return err
		}
	}
	return nil
}
