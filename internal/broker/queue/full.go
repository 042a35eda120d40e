package queue

import (
	"context"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// A trainer is full while its records have more bytes than their bound. Then no
// worker takes requests from its queue. A rollout that has begun must end all the
// same, otherwise its records stay above the bound. If no worker has such a rollout,
// the janitor moves its request to the plain lane, from which workers always take
// requests. The copy of the request is stored before the message is deleted. If the
// janitor dies in between, the next one finds no message and publishes the copy.

// full reports whether this worker knows that a trainer is full.
func (r *roster) full(tid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pools[tid]
	return p != nil && p.full()
}

// free moves the request of a rollout from the queue of a full trainer to the plain
// lane. The old message is deleted first. Otherwise it could be left, and run again
// when the records of the rollout are purged.
func (j *trainerCheck) free(ctx context.Context, id schema.ID, o *watched) error {
	kept, err := j.broker.Messages.Last(ctx, subjects.Records(j.tid), subjects.RequestCopy(id))
	if err != nil {
		return err
	}
	if kept == nil { // the request is only in the message
		m, err := j.message(ctx, id, o.Value.OwnerSeq, o.again)
		if m == nil || err != nil {
			return err
		}
		if _, err := j.broker.Messages.PutMsg(ctx, requestCopy(id, undelivered(m))); err != nil {
			return err
		}
	}
	crash.Here("full.copied")
	if err := unqueue(ctx, j.broker, id, o.Value.OwnerSeq, o.again); err != nil {
		return err
	}
	crash.Here("full.unqueued")
	return j.requeue(ctx, id, o)
}
