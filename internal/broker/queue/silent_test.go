package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// startSilent starts a server that does not answer a worker's requests about the
// streams of trainer beta, and a worker. It returns a connection with all rights.
func startSilent(t *testing.T) *nats.Conn {
	t.Helper()
	silent := `"$JS.API.STREAM.*.` + strings.Join(subjects.StreamsOf("beta"), `", "$JS.API.STREAM.*.`) + `"`
	url := testenv.ServePlain(t, `
		authorization { users: [
			{user: all, password: all}
			{user: worker, password: worker, permissions: {publish: {deny: [`+silent+`]}}}
		]}`)
	as := func(user string) string { return strings.Replace(url, "://", "://"+user+":"+user+"@", 1) }
	nc, err := nats.Connect(as("all"))
	harness.Must(t, err)
	t.Cleanup(nc.Close)
	b := testenv.DialAt(t, as("worker"), "", "", zerolog.Nop())
	harness.Must(t, b.Streams.Setup(t.Context(), broker.StreamsConfig{Timing: testenv.Quick()}))
	w, err := queue.NewWorker(b, queue.WorkerConfig{Worker: "w1", Instance: "i1", Timing: testenv.Quick()})
	harness.Must(t, err)
	testenv.RunWorker(t, w)
	return nc
}

// TestATrainerWhoseStreamsDoNotAnswerDelaysNoOther: it asks again and again, more
// often than a worker answers trainers at once.
func TestATrainerWhoseStreamsDoNotAnswerDelaysNoOther(t *testing.T) {
	t.Parallel()
	nc := startSilent(t)
	for range 20 {
		harness.Must(t, nc.PublishRequest(subjects.TrainerOpen("beta"), nats.NewInbox(), nil))
	}
	m, err := nc.Request(subjects.TrainerOpen("alpha"), nil, 20*time.Second)
	harness.Must(t, err)
	var o schema.Opened
	harness.Must(t, schema.Decode(m.Data, &o))
	if o.Error != "" {
		t.Fatalf("got %q", o.Error)
	}
}

// TestRequestsOfATrainerAreAnsweredTogether: several processes may be one trainer.
func TestRequestsOfATrainerAreAnsweredTogether(t *testing.T) {
	t.Parallel()
	nc := startSilent(t)
	inbox, err := nc.SubscribeSync(nats.NewInbox())
	harness.Must(t, err)
	for range 3 {
		harness.Must(t, nc.PublishRequest(subjects.TrainerOpen("alpha"), inbox.Subject, nil))
	}
	for range 3 {
		_, err := inbox.NextMsg(20 * time.Second)
		harness.Must(t, err)
	}
}
