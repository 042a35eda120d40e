package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// opened asks the workers for the streams of the trainer that a subject names.
func (b *bench) opened(t *testing.T, subject string) (o schema.Opened) {
	t.Helper()
	nc := testenv.Raw(t, b.Server.URL(), b.Server.AdminCreds(), "_INBOX.opener")
	m, err := nc.Request(subject, nil, 10*time.Second)
	harness.Must(t, err)
	harness.Must(t, schema.Decode(m.Data, &o))
	return o
}

func TestAWorkerMakesTheStreamsOfATrainer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if _, err := b.Broker.Trainers.Settings(t.Context(), "gamma"); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	o := b.opened(t, subjects.TrainerOpen("gamma"))
	if o.Error != "" || o.MaxQueue != broker.DefaultTrainer().MaxQueue || o.MaxBundleBytes == 0 || o.MaxArtifactBytes == 0 || o.Weight != 1 {
		t.Fatalf("got %+v", o)
	}
	js := b.JetStream(t)
	for _, name := range subjects.StreamsOf("gamma") {
		if _, err := js.Stream(t.Context(), name); err != nil {
			t.Errorf("stream %s: %v", name, err)
		}
	}
	for lane := range subjects.Lanes {
		if _, err := js.Consumer(t.Context(), subjects.Queue("gamma"), subjects.ConsumerOf(lane)); err != nil {
			t.Errorf("lane %d: %v", lane, err)
		}
	}
	all, err := b.Broker.Trainers.List(t.Context())
	harness.Must(t, err)
	slices.Sort(all)
	if !slices.Equal(all, []string{"alpha", "gamma"}) {
		t.Fatalf("got %q", all)
	}
}

func TestAWrongTrainerNameIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if o := b.opened(t, "trainer.Gamma.open"); !strings.Contains(o.Error, `"trainer.Gamma.open" names no trainer`) {
		t.Fatalf("got %+v", o)
	}
	if all, err := b.Broker.Trainers.List(t.Context()); err != nil || !slices.Equal(all, []string{"alpha"}) {
		t.Fatalf("got %q, %v", all, err)
	}
}

// A server that refuses a stream is no secret: the trainer gets the reason.
func TestTheReasonOfAMissingStreamIsAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.JetStream(t).CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"record.gamma.>"}})
	harness.Must(t, err)
	if o := b.opened(t, subjects.TrainerOpen("gamma")); !strings.Contains(o.Error, "REC_gamma") || !strings.Contains(o.Error, "overlap") {
		t.Fatalf("got %+v", o)
	}
}

func TestAMissingStreamIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	js := b.JetStream(t)
	for _, name := range subjects.StreamsOf("alpha") {
		t.Run(name, func(t *testing.T) {
			harness.Must(t, js.DeleteStream(t.Context(), name))
			id := schema.ID("alpha-" + strings.ToLower(name))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			sha, err := b.Trainer.PutBundle(ctx, []byte(name))
			harness.Must(t, err)
			harness.Eventually(t, "the request in the queue", 5*time.Minute, func() bool {
				_, err := b.Trainer.Submit(ctx, 1, []schema.Request{harness.Request(id)})
				return err == nil
			})
			j := b.Take(t)
			var got strings.Builder
			if err := j.CopyBundle(ctx, sha, &got); err != nil || got.String() != name {
				t.Fatalf("got %q, %v", got.String(), err)
			}
			a, err := j.KeepArtifact(ctx, "log", broker.FileOf([]byte(name)))
			harness.Must(t, err)
			harness.Must(t, j.Done(ctx, outcome(j)))
			if _, err := b.Trainer.Records.Result(ctx, id); err != nil {
				t.Error(err)
			}
			if got, err := b.Trainer.Artifact(ctx, a.SHA256); err != nil || string(got) != name {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestTheRecordsOfARunningRolloutAreLost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	harness.Must(t, b.JetStream(t).DeleteStream(t.Context(), subjects.Records("alpha")))
	if err := j.Done(t.Context(), outcome(j)); !errors.Is(err, queue.ErrFenced) {
		t.Fatalf("got %v", err)
	}
	if _, err := b.Trainer.Records.State(t.Context(), "alpha-1"); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
}

// People with the workers' rights may queue a request without a lane. The
// trainer's streams are made when a worker claims it.
func TestThePlainLaneTakesRequestsOfEveryTrainer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := harness.Request("gamma-1")
	r.V = schema.Version
	data, err := schema.Encode(&r)
	harness.Must(t, err)
	_, err = b.JetStream(t).Publish(t.Context(), subjects.Requests, data)
	harness.Must(t, err)
	j := b.Take(t)
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	if got, err := b.Broker.Records.Result(t.Context(), "gamma-1"); err != nil || got.Status != schema.StatusDone {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestAForeignMessageIDIsNoDuplicate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	beta := b.NewTrainer(t, "beta")
	nc := testenv.Raw(t, b.Server.URL(), b.Server.TrainerCreds("beta"), broker.InboxFor("trainer", "beta"))
	for _, id := range []string{"alpha-1", "alpha-2", "alpha-3"} { // the ids that alpha is about to use
		m, err := nc.RequestMsg(&nats.Msg{Subject: subjects.Request(2, "beta"), Header: nats.Header{"Nats-Msg-Id": {id}}, Data: []byte("x")}, 10*time.Second)
		harness.Must(t, err)
		if strings.Contains(string(m.Data), "error") {
			t.Fatalf("got %s", m.Data)
		}
	}
	b.Submit(t, harness.Request("alpha-1"))
	group := []schema.Request{harness.Request("alpha-2"), harness.Request("alpha-3")}
	_, err := b.Trainer.Submit(t.Context(), 2, group)
	harness.Must(t, err)
	if n := b.queued(t); n != 3 {
		t.Fatalf("%d requests of alpha are queued", n)
	}
	_ = beta
}

func TestForeignOpenBatchesBlockNoWorker(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.NewTrainer(t, "beta")
	nc := testenv.Raw(t, b.Server.URL(), b.Server.TrainerCreds("beta"), broker.InboxFor("trainer", "beta"))
	open := func(n int) string { // begins a batch and returns the server's answer
		m, err := nc.RequestMsg(&nats.Msg{Subject: subjects.Request(2, "beta"), Header: nats.Header{"Nats-Batch-Id": {fmt.Sprintf("b%d", n)}, "Nats-Batch-Sequence": {"1"}}, Data: []byte("x")}, 10*time.Second)
		harness.Must(t, err)
		return string(m.Data)
	}
	for n := range 50 {
		if said := open(n); strings.Contains(said, "error") {
			t.Fatalf("batch %d: %s", n, said)
		}
	}
	if said := open(50); !strings.Contains(said, "10210") {
		t.Fatalf("the server takes more open batches than this test knows: %s", said)
	}
	group := []schema.Request{harness.Request("alpha-1"), harness.Request("alpha-2")}
	_, err := b.Trainer.Submit(t.Context(), 2, group)
	harness.Must(t, err)
}

func TestAFullQueueIsATrainersOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	beta := b.NewTrainer(t, "beta")
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxQueue: 2}))
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "beta", broker.TrainerSettings{MaxQueueBytes: 1 << 20}))
	for i := range 3 {
		_, err := b.Trainer.Submit(t.Context(), i, []schema.Request{harness.Request(schema.ID(fmt.Sprintf("alpha-%d", i)))})
		if isFull(err) != (i == 2) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	for i := range 4 {
		r := harness.Request(schema.ID(fmt.Sprintf("beta-%d", i)))
		r.Task.Instruction = strings.Repeat("x", 400<<10)
		_, err := beta.Submit(t.Context(), 2, []schema.Request{r})
		if isFull(err) != (i >= 2) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
}

// TestATrainerWithTooManyRecordsWaits: its requests stay in the queue, and delay
// no other trainer's, until its records are below the bound.
func TestATrainerWithTooManyRecordsWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	beta := b.NewTrainer(t, "beta")
	b.Submit(t, harness.Request("alpha-1"))
	j := b.Take(t)
	harness.Must(t, j.Done(t.Context(), outcome(j)))
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxRecordBytes: 1}))
	b.Leave()
	_, err := b.Trainer.Submit(t.Context(), 0, []schema.Request{harness.Request("alpha-2")})
	harness.Must(t, err)
	_, err = beta.Submit(t.Context(), 3, []schema.Request{harness.Request("beta-1")})
	harness.Must(t, err)
	next := b.NewWorker(t, "w2")
	if j := takeFrom(t, next); j.Request.ID != "beta-1" {
		t.Fatalf("got %s", j.Request.ID)
	}
	bytes, most, err := b.Broker.Trainers.Records(t.Context(), "alpha")
	if err != nil || bytes <= most || most != 1 {
		t.Fatalf("%d of %d bytes, %v", bytes, most, err)
	}
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxRecordBytes: bytes}))
	if j := takeFrom(t, next); j.Request.ID != "alpha-2" {
		t.Fatalf("got %s", j.Request.ID)
	}
	if _, _, err := b.Broker.Trainers.Records(t.Context(), "nobody"); !errors.Is(err, broker.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
}

func TestTheJanitorLooksAfterEveryTrainer(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	beta := b.NewTrainer(t, "beta")
	dying, crash := b.crashing(t, "w2")
	b.Submit(t, harness.Request("alpha-1"))
	takeFrom(t, dying)
	_, err := beta.Submit(t.Context(), 2, []schema.Request{harness.Request("beta-1")})
	harness.Must(t, err)
	takeFrom(t, dying)
	for _, tid := range []string{"alpha", "beta"} {
		s, err := b.JetStream(t).Stream(t.Context(), subjects.Queue(tid))
		harness.Must(t, err)
		harness.Must(t, s.Purge(t.Context()))
	}
	crash()
	seen := map[schema.ID]bool{}
	for range 2 {
		j := takeFrom(t, b.Worker)
		seen[j.Request.ID] = j.Attempt == 2
	}
	if !seen["alpha-1"] || !seen["beta-1"] {
		t.Fatalf("got %v", seen)
	}
}

func TestOpeningKeepsTheSettingsOfATrainer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	set := broker.TrainerSettings{MaxQueue: 7, MaxQueueBytes: 1 << 20, MaxBundleBytes: 2 << 20, MaxArtifactBytes: 3 << 20, MaxRecordBytes: 4 << 20, Weight: 5}
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", set))
	want := schema.Opened{V: schema.Version, MaxQueue: 7, MaxQueueBytes: 1 << 20, MaxBundleBytes: 2 << 20, MaxArtifactBytes: 3 << 20, Weight: 5}
	harness.Eventually(t, "the answer with the new settings", 5*time.Minute, func() bool { return b.opened(t, subjects.TrainerOpen("alpha")) == want })
	harness.Must(t, b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxQueue: 8}))
	set.MaxQueue = 8
	if got, err := b.Broker.Trainers.Settings(t.Context(), "alpha"); err != nil || got != set {
		t.Fatalf("got %+v, %v", got, err)
	}
	var invalid *schema.InvalidError
	if err := b.Broker.Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{Weight: -1}); !errors.As(err, &invalid) || invalid.Field != "weight" {
		t.Fatalf("got %v", err)
	}
}
