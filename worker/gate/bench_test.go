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

// BenchmarkGate measures one model call of a growing conversation through
// everything (HTTP in, NATS, trainer, HTTP out) beside its physical parts, a
// bare HTTP hop and a bare NATS request/reply with the same bytes, interleaved
// in one run. It reports the medians in microseconds and "x-of-parts", their
// ratio.
//
// Compare two commits:
//
//	go test -run '^$' -bench Gate -count 10 ./worker/gate >old.txt
//	benchstat old.txt new.txt
func BenchmarkGate(b *testing.B) {
	for _, size := range []int{2 << 10, 32 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			srv := testenv.StartNATS(b, "alpha")
			answer := []byte(strings.Repeat("y", 1024))
			calls := [3]func([]byte) error{bareHTTP(b, answer), bareNATS(b, srv, answer), wholeGate(b, srv, answer)}
			var took [3][]time.Duration
			grow := growing{size: size}
			b.ResetTimer()
			for b.Loop() {
				body := grow.next()
				for i, call := range calls {
					start := time.Now()
					if err := call(body); err != nil {
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

// growing is a conversation that grows turn by turn from three quarters of a
// size to five quarters of it; then another one begins.
type growing struct {
	size, number int
	body         []byte
	turns        int
}

// turns of a conversation before the next one begins.
const growingTurns = 16

func (g *growing) next() []byte {
	if g.body == nil || g.turns == growingTurns {
		g.number, g.turns = g.number+1, 0
		g.body = fmt.Appendf(nil, `{"model":"policy","temperature":0.7,"messages":[{"role":"system","content":"conversation %d"}`, g.number)
		for len(g.body) < g.size*3/4 {
			g.turn(min(g.size/2, 1024))
		}
	}
	g.turns++
	g.turn(g.size / 2 / growingTurns)
	return append(g.body, `]}`...)
}

// turn adds a tool call and its result, of about so many bytes together.
func (g *growing) turn(size int) {
	id := len(g.body)
	g.body = fmt.Appendf(g.body, `,{"role":"assistant","content":null,"tool_calls":[{"id":"c%d","type":"function","function":{"name":"bash","arguments":"{}"}}]}`, id)
	g.body = fmt.Appendf(g.body, `,{"role":"tool","tool_call_id":"c%d","content":%q}`, id, strings.Repeat("x", max(size-180, 16)))
}

// newClient keeps enough connections open for many calls at once.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
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

func bareHTTP(b *testing.B, answer []byte) func([]byte) error {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(answer)
	}))
	client := newClient()
	b.Cleanup(func() {
		client.CloseIdleConnections()
		srv.Close()
	})
	return func(body []byte) error { return post(client, srv.URL, "", body) }
}

func bareNATS(b *testing.B, srv testenv.NATS, answer []byte) func([]byte) error {
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
	return func(body []byte) error {
		_, err := asker.Request("bare.echo", body, 5*time.Second)
		return err
	}
}

func wholeGate(b *testing.B, srv testenv.NATS, answer []byte) func([]byte) error {
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
	web, client := httptest.NewServer(s), newClient()
	b.Cleanup(func() {
		client.CloseIdleConnections()
		web.Close()
		s.Close()
		side.Close()
		cancel()
		<-served
		t.Close()
	})
	return func(body []byte) error { return post(client, web.URL+"/v1/chat/completions", s.Key(), body) }
}

// gateModel is the broker's caller as the gate's model.
type gateModel struct{ *broker.Caller }
