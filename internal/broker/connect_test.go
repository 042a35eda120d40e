package broker_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// A connection is tried again if one side leaves the other without an answer for a time,
// as on a busy host.
func TestAConnectionOutlivesSilence(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	srv := testenv.StartNATS(t, "alpha")
	for name, tt := range map[string]struct{ client, server bool }{
		"nothing of the server arrives": {false, true},
		"nothing of the client arrives": {true, false}, // the server gives up
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := testenv.NewProxy(t, strings.TrimPrefix(srv.URL(), "nats://"))
			link.Set(tt.client, tt.server, 0)
			log := &harness.Buffer{}
			type dialed struct {
				*broker.Broker
				err error
			}
			done := make(chan dialed, 1)
			go func() {
				b, err := broker.Dial(t.Context(), broker.Config{URL: link.URL(), Creds: srv.TrainerCreds("alpha"), Inbox: broker.InboxFor(broker.RoleTrainer, "alpha"), Log: zerolog.New(log)})
				done <- dialed{b, err}
			}()
			harness.Eventually(t, "a second try", time.Minute, func() bool { return strings.Contains(log.String(), "trying again") })
			link.Heal()
			got := <-done
			harness.Must(t, got.err)
			defer got.Close()
			harness.Must(t, got.CheckInbox(t.Context()))
		})
	}
}

// A context bounds the time, and the error names the server.
func TestAConnectionToASilentServerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	link := testenv.NewProxy(t, strings.TrimPrefix(testenv.StartNATS(t).URL(), "nats://"))
	link.Set(true, true, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	b, err := broker.Dial(ctx, broker.Config{URL: link.URL(), Log: zerolog.Nop()})
	if err == nil {
		b.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "connect to NATS at "+link.URL()) || !strings.Contains(err.Error(), "i/o timeout") {
		t.Errorf("got %v", err)
	}
}

// A process that is told to end makes no further try.
func TestACancelledConnectionIsNotTriedAgain(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	link := testenv.NewProxy(t, strings.TrimPrefix(testenv.StartNATS(t).URL(), "nats://"))
	link.Set(true, true, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	again := 0
	log := zerolog.New(io.Discard).Hook(zerolog.HookFunc(func(_ *zerolog.Event, _ zerolog.Level, text string) {
		if strings.Contains(text, "trying again") {
			again++
			cancel()
		}
	}))
	b, err := broker.Dial(ctx, broker.Config{URL: link.URL(), Log: log})
	if err == nil {
		b.Close()
	}
	if err == nil || again != 1 {
		t.Errorf("got %v after %d further tries, want an error after the one that was under way", err, again)
	}
}
