package queue_test

import (
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// The server keeps a file of a job at least as long as its worker keeps the rollout.
func TestAJobsFilesAreKeptForTheRetention(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Leave()
	w := b.NewWorker(t, "w2", func(c *queue.WorkerConfig) { c.Retention = 24 * time.Hour })
	_, err := b.Trainer.Submit(t.Context(), 2, []schema.Request{harness.Request("alpha-1")})
	harness.Must(t, err)
	job, err := w.Take(t.Context())
	harness.Must(t, err)
	_, err = job.KeepArtifact(t.Context(), "log", broker.FileOf([]byte("log")))
	harness.Must(t, err)
	stream, err := b.JetStream(t).Stream(t.Context(), subjects.ObjectStream(subjects.ArtifactsBucket("alpha")))
	harness.Must(t, err)
	info, err := stream.Info(t.Context())
	harness.Must(t, err)
	m, err := stream.GetMsg(t.Context(), info.State.LastSeq)
	harness.Must(t, err)
	if life := m.Header.Get("Nats-TTL"); life != "49h0m0s" {
		t.Errorf("the file is kept for %q, want 49h0m0s", life)
	}
	job.Abandon()
}
