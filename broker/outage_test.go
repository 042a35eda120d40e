package broker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// again is a log that tells when the server has been asked in vain.
type again struct{ seen chan struct{} }

func newAgain() again { return again{make(chan struct{}, 1000)} }

func (a again) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("the server is asked again")) {
		a.seen <- struct{}{}
	}
	return len(p), nil
}

func (a again) wait(t *testing.T) {
	t.Helper()
	select {
	case <-a.seen:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was asked in vain")
	}
}

func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.Read(data) // never fails
	return data
}

// Files wait for a server that is away: a rollout that has come so far loses
// nothing, and neither does a trainer's answer that is too large for a message.
func TestFilesWaitForTheServer(t *testing.T) {
	t.Parallel()
	bundle, artifact := noise(3<<20), noise(3<<20)
	reply := done("ok")
	reply.TopLogprobs = json.RawMessage(`"` + base64.StdEncoding.EncodeToString(noise(9<<20)) + `"`)
	for name, do := range map[string]func(ctx context.Context, worker *broker.Broker, trainer *broker.TrainerSide, sha string) error{
		"a bundle is read": func(ctx context.Context, worker *broker.Broker, _ *broker.TrainerSide, sha string) error {
			got, err := worker.Bundle(ctx, sha)
			if err == nil && !bytes.Equal(got, bundle) {
				err = fmt.Errorf("another bundle of %d bytes came", len(got))
			}
			return err
		},
		"an artifact is put": func(ctx context.Context, worker *broker.Broker, trainer *broker.TrainerSide, _ string) error {
			a, err := worker.PutArtifact(ctx, "log", artifact, time.Hour)
			if err != nil {
				return err
			}
			got, err := trainer.Artifact(ctx, a.SHA256)
			if err == nil && !bytes.Equal(got, artifact) {
				err = fmt.Errorf("another artifact of %d bytes came", len(got))
			}
			return err
		},
		"a bundle is put": func(ctx context.Context, _ *broker.Broker, trainer *broker.TrainerSide, _ string) error {
			_, err := trainer.PutBundle(ctx, artifact)
			return err
		},
		"a large answer is put": func(ctx context.Context, _ *broker.Broker, trainer *broker.TrainerSide, _ string) error {
			_, err := trainer.EncodeFrame(ctx, reply)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			sha, err := b.trainer.PutBundle(t.Context(), bundle)
			must(t, err)
			log := newAgain()
			worker := dialAt(t, b.server.URL(), b.server.WorkerCreds(), broker.InboxFor("worker", "w9"), zerolog.New(log))
			trainer, err := dialAt(t, b.server.URL(), b.server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"), zerolog.New(log)).TrainerSide("alpha")
			must(t, err)
			b.server.Shutdown()
			ended := make(chan error, 1)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go func() { ended <- do(ctx, worker, trainer, sha) }()
			log.wait(t)
			b.restart(t)
			must(t, <-ended)
		})
	}
}

// What does not wait says what is wrong.
func TestWhatDoesNotWaitSaysThatTheServerIsAway(t *testing.T) {
	b := newBench(t)
	b.server.Shutdown()
	for name, do := range map[string]func() error{
		"state": func() error { _, err := b.trainer.State(t.Context(), "alpha-1"); return err },
		"submit": func() error {
			_, err := b.trainer.Submit(t.Context(), 2, []schema.Request{request("alpha-1")})
			return err
		},
		"group": func() error {
			_, err := b.trainer.Submit(t.Context(), 2, []schema.Request{request("alpha-1"), request("alpha-2")})
			return err
		},
		"cancel": func() error { return b.trainer.Cancel([]schema.ID{"alpha-1"}, "enough") },
		"hold": func() error {
			return b.trainer.Hold(&schema.Hold{V: schema.Version, Instance: "i1", Serial: 1, All: true})
		},
	} {
		var err error
		eventually(t, name, func() bool { err = do(); return errors.Is(err, broker.ErrUnreachable) }) // once its client has noticed
		if strings.Contains(err.Error(), "nats:") {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.restart(t)
}

// A trainer that starts while the server goes away starts when it is back.
func TestATrainerWaitsForAServerThatIsAway(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := newAgain()
	side, err := dialAt(t, b.server.URL(), b.server.TrainerCreds("alpha"), broker.InboxFor("trainer", "alpha"), zerolog.New(log)).TrainerSide("alpha")
	must(t, err)
	b.server.Shutdown()
	there := make(chan error, 1)
	go func() { there <- side.AwaitSetup(t.Context()) }()
	log.wait(t)
	b.restart(t)
	must(t, <-there)
}

// What waits for the server ends with its context, and says what it did and why
// it ended.
func TestWaitingForTheServerEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := newAgain()
	worker := dialAt(t, b.server.URL(), b.server.WorkerCreds(), broker.InboxFor("worker", "w9"), zerolog.New(log))
	b.server.Shutdown()
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := worker.PutArtifact(ctx, "log", []byte("log"), 0)
		ended <- err
	}()
	log.wait(t)
	cancel(broker.ErrFenced)
	if err := <-ended; !errors.Is(err, broker.ErrFenced) || !strings.Contains(err.Error(), "put 3 bytes") {
		t.Errorf("got %v", err)
	}
	b.restart(t)
}

// An object whose writer does not hear that a piece is stored has that piece
// once.
func TestALostAnswerWritesNoPieceTwice(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const pieces = 5
	data := noise(pieces << 20)
	js := b.js(t)
	stream, err := js.Stream(t.Context(), subjects.ObjectStream(subjects.BucketArtifact))
	must(t, err)
	stored := func() uint64 {
		info, err := stream.Info(t.Context())
		must(t, err)
		return info.State.Msgs
	}
	log := newAgain()
	p := testenv.NewProxy(t, strings.TrimPrefix(b.server.URL(), "nats://"))
	worker := dialAt(t, p.URL(), b.server.WorkerCreds(), broker.InboxFor("worker", "w9"), zerolog.New(log))
	_, err = worker.PutArtifact(t.Context(), "first", []byte("what is opened once is open"), 0)
	must(t, err)
	before := stored()

	p.Set(false, false, 20*time.Millisecond) // so that the pieces come one after the other
	ended := make(chan error, 1)
	var a schema.Artifact
	go func() {
		var err error
		a, err = worker.PutArtifact(t.Context(), "log", data, 0)
		ended <- err
	}()
	eventually(t, "a piece", func() bool { return stored() > before })
	p.Set(false, true, 0) // the answer to this one, or to the next
	log.wait(t)
	p.Cut()
	p.Heal()
	must(t, <-ended)
	if n := stored() - before; n != pieces+1 {
		t.Errorf("%d messages for %d pieces and their name", n, pieces)
	}
	store, err := js.ObjectStore(t.Context(), subjects.BucketArtifact)
	must(t, err)
	if theirs, err := store.GetBytes(t.Context(), a.SHA256); err != nil || !bytes.Equal(theirs, data) { // which checks size and digest
		t.Fatalf("the usual client cannot read it: %v", err)
	}
}
