package broker_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Writes of files wait for a server that is away, so neither a rollout's
// artifacts nor a trainer's answer that is too large for a message are lost.
func TestFilesWaitForTheServer(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	bundle, artifact := harness.Noise(3<<20), harness.Noise(3<<20)
	reply := &schema.Reply{V: 1, Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}
	reply.TopLogprobs = json.RawMessage(`"` + base64.StdEncoding.EncodeToString(harness.Noise(9<<20)) + `"`)
	type side struct {
		*queue.Trainer
		broker *broker.Broker
	}
	for name, do := range map[string]func(ctx context.Context, worker *broker.Broker, trainer side, sha string) error{
		"a bundle is read": func(ctx context.Context, worker *broker.Broker, _ side, sha string) error {
			got, err := worker.Objects.Bundle(ctx, "alpha", sha)
			if err == nil && !bytes.Equal(got, bundle) {
				err = fmt.Errorf("another bundle of %d bytes came", len(got))
			}
			return err
		},
		"an artifact is put": func(ctx context.Context, worker *broker.Broker, trainer side, _ string) error {
			a, err := worker.Objects.PutArtifact(ctx, "alpha", "log", broker.FileOf(artifact), time.Hour)
			if err != nil {
				return err
			}
			got, err := trainer.Artifact(ctx, a.SHA256)
			if err == nil && !bytes.Equal(got, artifact) {
				err = fmt.Errorf("another artifact of %d bytes came", len(got))
			}
			return err
		},
		"a bundle is put": func(ctx context.Context, _ *broker.Broker, trainer side, _ string) error {
			_, err := trainer.PutBundle(ctx, artifact)
			return err
		},
		"a large answer is put": func(ctx context.Context, _ *broker.Broker, trainer side, _ string) error {
			server, err := modelcall.NewServer(trainer.broker, "alpha")
			if err == nil {
				_, err = server.EncodeFrame(ctx, reply)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := testenv.StartPool(t)
			sha, err := b.Trainer.PutBundle(t.Context(), bundle)
			harness.Must(t, err)
			log := testenv.NewRetries()
			worker := testenv.DialAt(t, b.Server.URL(), testenv.AdmitWorker(t, b.Server, "w9"), broker.InboxFor("worker", "w9"), zerolog.New(log))
			tb := testenv.DialAt(t, b.Server.URL(), b.Server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"), zerolog.New(log))
			trainer, err := queue.NewTrainer(tb, "alpha")
			harness.Must(t, err)
			b.Server.Shutdown()
			ended := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go func() { ended <- do(ctx, worker, side{trainer, tb}, sha) }()
			log.Wait(t)
			b.Restart(t)
			harness.Must(t, <-ended)
		})
	}
}

// An operation that waits for the server ends with its context. Its error names
// the operation and the reason.
func TestWaitingForTheServerEnds(t *testing.T) {
	t.Parallel()
	b := testenv.StartPool(t)
	log := testenv.NewRetries()
	worker := testenv.DialAt(t, b.Server.URL(), testenv.AdmitWorker(t, b.Server, "w9"), broker.InboxFor("worker", "w9"), zerolog.New(log))
	b.Server.Shutdown()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := worker.Objects.PutArtifact(ctx, "alpha", "log", broker.FileOf([]byte("log")), 0)
		ended <- err
	}()
	log.Wait(t)
	cancel(queue.ErrFenced)
	if err := <-ended; !errors.Is(err, queue.ErrFenced) || !strings.Contains(err.Error(), "put 3 bytes") {
		t.Errorf("got %v", err)
	}
	b.Restart(t)
}

// If the confirmation of a chunk is lost, the object still has that chunk only
// once.
func TestALostAnswerWritesNoPieceTwice(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := testenv.StartPool(t)
	const pieces = 5
	data := harness.Noise(pieces << 20)
	js := b.JetStream(t)
	stream, err := js.Stream(t.Context(), subjects.ObjectStream(subjects.ArtifactsBucket("alpha")))
	harness.Must(t, err)
	stored := func() uint64 {
		info, err := stream.Info(t.Context())
		harness.Must(t, err)
		return info.State.Msgs
	}
	log := testenv.NewRetries()
	p := testenv.NewProxy(t, strings.TrimPrefix(b.Server.URL(), "nats://"))
	worker := testenv.DialAt(t, p.URL(), testenv.AdmitWorker(t, b.Server, "w9"), broker.InboxFor("worker", "w9"), zerolog.New(log))
	_, err = worker.Objects.PutArtifact(t.Context(), "alpha", "first", broker.FileOf([]byte("what is opened once is open")), 0)
	harness.Must(t, err)
	before := stored()

	p.Set(false, false, 20*time.Millisecond) // so that the chunks arrive one after the other
	ended := make(chan error, 1)
	var a schema.Artifact
	go func() {
		var err error
		a, err = worker.Objects.PutArtifact(t.Context(), "alpha", "log", broker.FileOf(data), 0)
		ended <- err
	}()
	harness.Eventually(t, "a piece", 5*time.Minute, func() bool { return stored() > before })
	p.Set(false, true, 0) // the answer to this chunk, or to the next, is lost
	log.Wait(t)
	p.Cut()
	p.Heal()
	harness.Must(t, <-ended)
	if n := stored() - before; n != pieces+1 {
		t.Errorf("%d messages for %d pieces and their name", n, pieces)
	}
	store, err := js.ObjectStore(t.Context(), subjects.ArtifactsBucket("alpha"))
	harness.Must(t, err)
	if theirs, err := store.GetBytes(t.Context(), a.SHA256); err != nil || !bytes.Equal(theirs, data) { // which checks size and digest
		t.Fatalf("the usual client cannot read it: %v", err)
	}
}

// A connection goes on with its server after another server, with other
// credentials, had its port for a while.
func TestAForeignServerHadThePort(t *testing.T) {
	t.Parallel()
	b := testenv.StartPool(t)
	lost := newRefusals()
	c := broker.Config{URL: b.Server.URL(), Creds: b.Server.TrainerCreds("alpha"), Name: "patient", Inbox: broker.InboxFor("trainer", "alpha"), Log: zerolog.New(lost)}
	patient, err := broker.Dial(t.Context(), c)
	harness.Must(t, err)
	t.Cleanup(patient.Close)
	b.Server.Shutdown()

	other := b.Config
	other.StateDir = t.TempDir()
	foreign := testenv.Serve(t, other)
	for range 6 { // both connections more than once
		select {
		case <-lost.seen:
		case <-time.After(20 * time.Second):
			t.Fatal("the foreign server was not asked again")
		}
	}
	foreign.Shutdown()

	b.Restart(t)
	harness.Eventually(t, "the server's answer", 5*time.Minute, func() bool {
		_, err := patient.Check(t.Context())
		return err == nil
	})
}

// refusals is a log writer that signals each refused authentication.
type refusals struct{ seen chan struct{} }

func newRefusals() refusals { return refusals{make(chan struct{}, 1000)} }

func (r refusals) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("authorization violation")) {
		r.seen <- struct{}{}
	}
	return len(p), nil
}
