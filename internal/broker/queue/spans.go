package queue

import (
	"context"
	"time"

	"github.com/turngate/turngate/internal/traces"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// spans makes the spans of decisions.
type spans struct{ *base }

// decided makes the spans of a decision that was carried out: the span of an attempt without
// its worker, and the span of an ended rollout. A rollout that never began has none.
func (s *spans) decided(ctx context.Context, m *resolution, d *decision) {
	if s.cfg.Traces == nil {
		return
	}
	was := &m.record.Value
	stays := d.next.Owned() && d.next.Attempt == was.Attempt || d.step == writeFinish && !m.watched // its worker may be alive
	lost := was.Owned() && (was.Worker != s.wid || was.Instance != s.instance) && !stays
	ended := d.next.Status.Terminal() && !was.Status.Terminal() && d.next.Attempt > 0
	if !lost && !ended {
		return
	}
	of := s.subject(ctx, m)
	if lost {
		s.cfg.Traces.Lost(of, was.Attempt, was.Worker, time.UnixMilli(was.Since))
	}
	if ended {
		s.cfg.Traces.Ended(of, &d.next)
	}
}

// subject returns the rollout of a resolution. Without its message in the queue, the kept
// copy of the request has its trace.
func (s *spans) subject(ctx context.Context, m *resolution) traces.Subject {
	switch {
	case m.own != nil:
		return m.own.Subject()
	case m.d != nil && m.req != nil:
		return subjectOf(m.req, m.d)
	}
	of := traces.Subject{Request: s.copyOf(ctx, m.id), Stored: time.Now()}
	copied, err := s.broker.Messages.Last(ctx, subjects.Records(m.id.Trainer()), subjects.RequestCopy(m.id))
	if err == nil && copied != nil {
		of.Parent, of.Stored = traces.Of(copied.Header), copied.Time
	}
	return of
}

// Subject returns the rollout of the job, for its spans.
func (j *Job) Subject() traces.Subject { return subjectOf(&j.Request, j.msg.Load()) }

func subjectOf(q *schema.Request, d *delivery) traces.Subject {
	return traces.Subject{Request: q, Parent: d.trace, Stored: d.stored}
}
