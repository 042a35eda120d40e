package queue_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// TestOneTrainersCancelsDelayNoOther lets alpha flood the only worker with cancels
// of rollouts that do not exist, while beta cancels one of its own.
func TestOneTrainersCancelsDelayNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	beta := b.NewTrainer(t, "beta")
	_, err := beta.Submit(t.Context(), 2, []schema.Request{harness.Request("beta-1")})
	harness.Must(t, err)
	const floods, each = 500, 1000
	for n := range floods {
		ids := make([]schema.ID, each)
		for i := range ids {
			ids[i] = schema.ID(fmt.Sprintf("alpha-%d-%d", n, i))
		}
		harness.Must(t, b.Trainer.Cancel(ids, nil, "flood"))
	}
	harness.Must(t, beta.Cancel([]schema.ID{"beta-1"}, nil, "stale"))
	harness.Eventually(t, "the result of beta's rollout", 5*time.Minute, func() bool {
		r, err := beta.Records.Result(t.Context(), "beta-1")
		return err == nil && r.Status == schema.StatusCancelled
	})
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Records("alpha"))
	harness.Must(t, err)
	if n := s.CachedInfo().State.Msgs; n >= 2*floods*each {
		t.Errorf("the control failed: all of alpha's cancels were carried out before, %d records", n)
	}
	harness.Eventually(t, "alpha's cancels to be carried out, too", 5*time.Minute, func() bool {
		info, err := s.Info(t.Context())
		return err == nil && info.State.Msgs > 0
	})
}

// TestACancelReadsTheQueueOnce counts the messages that a worker reads to cancel
// many rollouts without sequences.
func TestACancelReadsTheQueueOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const queued, unknown = 60, 40
	var ids []schema.ID
	for i := range queued {
		id := schema.ID(fmt.Sprintf("alpha-%d", i))
		b.Submit(t, harness.Request(id))
		ids = append(ids, id)
	}
	for i := range unknown {
		ids = append(ids, schema.ID(fmt.Sprintf("alpha-no-%d", i)))
	}
	key, err := nats.NkeyOptionFromSeed(b.Server.AdminCreds())
	harness.Must(t, err)
	nc, err := nats.Connect(b.Server.URL(), key)
	harness.Must(t, err)
	defer nc.Close()
	var reads atomic.Int64
	_, err = nc.Subscribe("$JS.API.STREAM.MSG.GET."+subjects.Queue("alpha"), func(*nats.Msg) { reads.Add(1) })
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	harness.Must(t, b.Trainer.Cancel(ids, nil, "stale"))
	harness.Eventually(t, "all results", 5*time.Minute, func() bool {
		for _, id := range ids {
			if r, err := b.Trainer.Records.Result(t.Context(), id); err != nil || r.Status != schema.StatusCancelled {
				return false
			}
		}
		return true
	})
	s, err := b.JetStream(t).Stream(t.Context(), subjects.Queue("alpha"))
	harness.Must(t, err)
	if n := s.CachedInfo().State.Msgs; n != 0 {
		t.Errorf("%d messages are still in the queue", n)
	}
	harness.Must(t, nc.Flush())
	if n := reads.Load(); n > 5*(queued+unknown) {
		t.Errorf("%d messages were read for %d cancels", n, queued+unknown)
	}
}
