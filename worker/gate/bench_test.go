package gate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/worker/gate"
)

// BenchmarkGate measures one model call through everything (HTTP in, NATS,
// trainer, HTTP out) beside its physical parts, a bare HTTP hop and a bare
// NATS request/reply with the same bytes, interleaved in one run. It reports
// the medians in microseconds and "x-of-parts", their ratio.
//
// Compare two commits:
//
//	go test -run '^$' -bench Gate -count 10 ./worker/gate >old.txt
//	benchstat old.txt new.txt
func BenchmarkGate(b *testing.B) {
	for _, size := range []int{2 << 10, 32 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			p := newParts(b, size)
			var took [3][]time.Duration
			b.ResetTimer()
			for b.Loop() {
				for i, call := range []func() error{p.http, p.nats, p.gate} {
					start := time.Now()
					if err := call(); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(start))
				}
			}
			b.StopTimer()
			var p50 [3]float64
			for i := range took {
				slices.Sort(took[i])
				p50[i] = float64(took[i][len(took[i])/2].Nanoseconds()) / 1000
			}
			b.ReportMetric(0, "ns/op") // the sum of three different things says nothing
			b.ReportMetric(p50[0], "http-µs")
			b.ReportMetric(p50[1], "nats-µs")
			b.ReportMetric(p50[2], "gate-µs")
			b.ReportMetric(p50[2]/(p50[0]+p50[1]), "x-of-parts")
		})
	}
}

type parts struct{ http, nats, gate func() error }

func newParts(b *testing.B, size int) parts {
	b.Helper()
	srv := testenv.StartNATS(b, "alpha")
	body := []byte(benchBody(size))
	answer := []byte(strings.Repeat("y", 1024))
	return parts{http: bareHTTP(b, body, answer), nats: bareNATS(b, srv, body, answer), gate: wholeGate(b, srv, body, answer)}
}

// benchBody is a conversation of messages of about 1 KB.
func benchBody(size int) string {
	var messages []string
	for n := 0; n < size; n += 1024 {
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":%q}`, strings.Repeat("x", 990)))
	}
	return `{"model":"policy","temperature":0.7,"messages":[` + strings.Join(messages, ",") + `]}`
}

func post(client *http.Client, url, key string, body []byte) error {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

func bareHTTP(b *testing.B, body, answer []byte) func() error {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(answer)
	}))
	b.Cleanup(srv.Close)
	return func() error { return post(srv.Client(), srv.URL, "", body) }
}

func bareNATS(b *testing.B, srv testenv.NATS, body, answer []byte) func() error {
	connect := func(inbox string) *nats.Conn {
		key, err := nats.NkeyOptionFromSeed(srv.WorkerCreds())
		if err != nil {
			b.Fatal(err)
		}
		nc, err := nats.Connect(srv.URL(), key, nats.CustomInboxPrefix(inbox))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(nc.Close)
		return nc
	}
	responder, asker := connect("_INBOX.responder"), connect("_INBOX.asker")
	if _, err := responder.Subscribe("bare.echo", func(m *nats.Msg) { _ = m.Respond(answer) }); err != nil {
		b.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		b.Fatal(err)
	}
	return func() error {
		_, err := asker.Request("bare.echo", body, 5*time.Second)
		return err
	}
}

func wholeGate(b *testing.B, srv testenv.NATS, body, answer []byte) func() error {
	t, err := trainer.New(trainer.Config{Broker: srv.Trainer(b, "alpha"), Name: "alpha", Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	message := json.RawMessage(`{"role":"assistant","content":"` + string(answer) + `"}`)
	ctx, cancel := context.WithCancel(b.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = t.Serve(ctx, func(context.Context, *schema.Call) (*schema.Reply, error) {
			return &schema.Reply{Message: message, FinishReason: "stop"}, nil
		})
	}()
	side, err := srv.Worker(b, "w1").WorkerSide(broker.WorkerConfig{Worker: "w1", Instance: "i1"})
	if err != nil {
		b.Fatal(err)
	}
	r := schema.Request{ID: "alpha-1", Trainer: "alpha", Gate: schema.GateOptions{MaxCalls: 1 << 30}}.WithDefaults()
	s := gate.Open(b.Context(), gate.Config{
		Rollout: r.ID, Attempt: 1, ModelName: "policy", Options: r.Gate, Model: gateModel{side.Caller(r)}, Dialects: gate.Dialects(), Log: zerolog.Nop(),
	})
	web := httptest.NewServer(s)
	b.Cleanup(func() {
		web.Close()
		s.Close()
		side.Close()
		cancel()
		<-served
		t.Close()
	})
	return func() error { return post(web.Client(), web.URL+"/v1/chat/completions", s.Key(), body) }
}

// gateModel is the broker's caller as the gate's model.
type gateModel struct{ *broker.Caller }
