package broker_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

func TestARollUpDeletesOnlyTheTrainersOwnBundles(t *testing.T) {
	b := testenv.StartPool(t)
	sha, err := b.Trainer.PutBundle(t.Context(), []byte("alpha's"))
	harness.Must(t, err)
	beta := b.NewTrainer(t, "beta")
	own, err := beta.PutBundle(t.Context(), []byte("beta's"))
	harness.Must(t, err)
	nc := testenv.Raw(t, b.Server.URL(), b.Server.TrainerCreds("beta"), broker.InboxFor("trainer", "beta"))
	m, err := nc.RequestMsg(&nats.Msg{Subject: subjects.ObjectChunks(subjects.TasksBucket("beta"), "x"), Header: nats.Header{"Nats-Rollup": {"all"}}, Data: []byte("x")}, 10*time.Second)
	harness.Must(t, err)
	var ack struct{ Seq uint64 }
	harness.Must(t, json.Unmarshal(m.Data, &ack))
	if ack.Seq == 0 {
		t.Fatalf("the roll-up was refused: %s", m.Data)
	}
	if _, err := b.Broker.Objects.Bundle(t.Context(), "beta", own); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	if got, err := b.Broker.Objects.Bundle(t.Context(), "alpha", sha); err != nil || string(got) != "alpha's" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestAFullBucketNamesItsBound(t *testing.T) {
	b := testenv.StartPool(t)
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxBundleBytes: 1 << 20, MaxArtifactBytes: 1 << 20}))
	var full *broker.FullError
	small := harness.Noise(300 << 10)
	_, err := b.Trainer.PutBundle(t.Context(), small)
	harness.Must(t, err)
	if _, err := b.Trainer.PutBundle(t.Context(), harness.Noise(900<<10)); !errors.As(err, &full) || full.Trainer != "alpha" || full.Limit != 1<<20 || !strings.Contains(err.Error(), "the bundles of trainer alpha have reached their bound of 1048576 bytes") {
		t.Fatalf("got %v", err)
	}
	a, err := b.Broker.Objects.PutArtifact(t.Context(), "alpha", "log", broker.FileOf(small), 0)
	harness.Must(t, err)
	if _, err := b.Broker.Objects.PutArtifact(t.Context(), "alpha", "log", broker.FileOf(harness.Noise(900<<10)), 0); !errors.As(err, &full) || !strings.Contains(err.Error(), "the artifacts of trainer alpha") {
		t.Fatalf("got %v", err)
	}
	if _, err := b.Broker.Objects.PutArtifact(t.Context(), "alpha", "log", broker.FileOf(small), 0); err != nil || a.Size != 300<<10 { // it is stored already
		t.Fatalf("got %v", err)
	}
	beta := b.NewTrainer(t, "beta")
	_, err = beta.PutBundle(t.Context(), harness.Noise(2<<20))
	harness.Must(t, err)
}

// TestStreamsOnASmallDiskHaveTheSameSizeEachTime: while a bucket is made, it reserves
// more than it keeps, and the other one must not see that.
func TestStreamsOnASmallDiskHaveTheSameSizeEachTime(t *testing.T) {
	url := testenv.ServePlain(t, "jetstream: {max_file_store: 1500MB}")
	b := testenv.DialAt(t, url, "", "", zerolog.Nop())
	wants := broker.TrainerSettings{MaxQueueBytes: 1 << 20, MaxBundleBytes: 8 << 30, MaxArtifactBytes: 8 << 30}
	harness.Must(t, b.Streams.Setup(t.Context(), broker.StreamsConfig{Trainer: wants}))
	for range 20 {
		got, err := b.Trainers.Open(t.Context(), "alpha")
		harness.Must(t, err)
		if got.MaxBundleBytes != 128<<20 || got.MaxArtifactBytes != 128<<20 {
			t.Fatalf("%d and %d bytes", got.MaxBundleBytes, got.MaxArtifactBytes)
		}
		harness.Must(t, b.Trainers.Delete(t.Context(), "alpha"))
	}
}

// TestStreamsThatHaveNoRoomTogether: a server with room for each bucket of the default size,
// but not for both, has room for the queue.
func TestStreamsThatHaveNoRoomTogether(t *testing.T) {
	t.Parallel()
	url := testenv.ServePlain(t, "jetstream: {max_file_store: 41GB}")
	b := testenv.DialAt(t, url, "", "", zerolog.Nop())
	harness.Must(t, b.Streams.Setup(t.Context(), broker.StreamsConfig{}))
	for range 20 {
		got, err := b.Trainers.Open(t.Context(), "alpha")
		harness.Must(t, err)
		if got.MaxQueueBytes != 1<<30 || got.MaxBundleBytes != 8<<30 || got.MaxArtifactBytes != 512<<20 {
			t.Fatalf("got %+v", got)
		}
		harness.Must(t, b.Trainers.Delete(t.Context(), "alpha"))
	}
}
