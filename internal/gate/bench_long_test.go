package gate_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// served is a gate with a trainer.
type served struct {
	url, key string
	client   *http.Client
}

func serveGate(b *testing.B, srv testenv.NATS, o schema.GateOptions, answer func(*trainer.Pending)) served {
	b.Helper()
	return serveGates(b, srv, 1, o, answer)[0]
}

// serveGates opens sessions, each of its own rollout.
func serveGates(b *testing.B, srv testenv.NATS, n int, o schema.GateOptions, answer func(*trainer.Pending)) []served {
	b.Helper()
	grants, err := placeOf(srv).grantCalls()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(grants.Close)
	t, err := trainer.Dial(b.Context(), trainer.Config{Broker: srv.Trainer(b, "alpha"), Name: "alpha", AnswerAll: true, Log: zerolog.Nop()})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			p, err := t.Next(ctx)
			if err != nil {
				return
			}
			go answer(p)
		}
	}()
	calls, err := modelcall.NewClient(srv.Worker(b, "w1"), "w1", "i1")
	if err != nil {
		b.Fatal(err)
	}
	o.MaxCalls, o.MaxRepeats = 1<<30, 1<<30
	client := newClient()
	var gates []served
	var closers []func()
	for i := range n {
		r := schema.Request{ID: schema.ID(fmt.Sprintf("alpha-%d", i+1)), Trainer: "alpha", Gate: o}.WithDefaults()
		s := gate.Open(b.Context(), gate.Config{
			Rollout: r.ID, Attempt: 1, ModelName: "policy", Options: r.Gate, Model: gateModel{calls.Caller(r, nil)}, Dialects: gate.Dialects(), Log: zerolog.Nop(),
		})
		web := httptest.NewServer(s)
		closers = append(closers, web.Close, s.Close)
		gates = append(gates, served{web.URL + "/v1/chat/completions", s.Key(), client})
	}
	b.Cleanup(func() {
		client.CloseIdleConnections()
		for _, c := range closers {
			c()
		}
		calls.Close()
		cancel()
		<-ended
		t.Close()
	})
	return gates
}

// BenchmarkLongConversation runs conversations of 200 turns that grow to 800
// KB. It reports the bytes of calls over NATS as a multiple of the final size,
// the median time of one of the first twenty and of the last twenty calls, and
// the same times without a bare HTTP hop with the same body ("beyond-…").
func BenchmarkLongConversation(b *testing.B) {
	srv := testenv.StartNATS(b, "alpha")
	srv.AdmitWorker(b, "w1")
	key, err := nats.NkeyOptionFromSeed(srv.AdminCreds())
	if err != nil {
		b.Fatal(err)
	}
	tap, err := nats.Connect(srv.URL(), key, nats.CustomInboxPrefix(broker.InboxFor("admin", "admin")))
	if err != nil {
		b.Fatal(err)
	}
	defer tap.Close()
	var mu sync.Mutex
	travelled := 0
	if _, err := tap.Subscribe("rollout.*.llm.>", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		travelled += len(m.Data)
	}); err != nil {
		b.Fatal(err)
	}
	s := serveGate(b, srv, schema.GateOptions{}, func(p *trainer.Pending) {
		_ = p.Reply(&schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"})
	})
	const turns, size = 200, 800 << 10
	hop := bareHTTP(b, []byte(`{}`))
	var first, last, firstHop, lastHop []time.Duration
	final := 0
	for n := 0; b.Loop(); n++ {
		var body strings.Builder
		fmt.Fprintf(&body, `{"model":"policy","tools":[],"messages":[{"role":"user","content":"conversation %d"}`, n)
		for turn := range turns {
			fmt.Fprintf(&body, `,{"role":"assistant","content":null,"tool_calls":[{"id":"c%d","type":"function","function":{"name":"bash","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c%d","content":%q}`,
				turn, turn, strings.Repeat("x", size/turns-160))
			whole := body.String() + "]}"
			start := time.Now()
			if err := post(s.client, s.url, s.key, []byte(whole)); err != nil {
				b.Fatal(err)
			}
			took := time.Since(start)
			start = time.Now()
			if err := hop([]byte(whole)); err != nil {
				b.Fatal(err)
			}
			switch bare := time.Since(start); {
			case turn < 20:
				first, firstHop = append(first, took), append(firstHop, bare)
			case turn >= turns-20:
				last, lastHop = append(last, took), append(lastHop, bare)
			}
			final = len(whole)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	b.ReportMetric(float64(travelled)/float64(b.N)/float64(final), "x-of-size")
	b.ReportMetric(median(last)/median(first), "last-of-first")
	b.ReportMetric(median(first), "first-µs")
	b.ReportMetric(median(last), "last-µs")
	b.ReportMetric(median(first)-median(firstHop), "beyond-first-µs")
	b.ReportMetric(median(last)-median(lastHop), "beyond-last-µs")
}

// median returns the median in microseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds()) / 1000
}

// BenchmarkStreams passes 64 streams of 512 small pieces each through the whole
// gate, and through a bare server of event streams, in turns.
func BenchmarkStreams(b *testing.B) {
	const streams, pieces = 64, 512
	srv := testenv.StartNATS(b, "alpha")
	srv.AdmitWorker(b, "w1")
	whole := json.RawMessage(`{"role":"assistant","content":"` + strings.Repeat("word ", pieces) + `"}`)
	s := serveGate(b, srv, schema.GateOptions{Stream: schema.StreamPass, MaxParallel: 2 * streams}, func(p *trainer.Pending) {
		out := p.Stream()
		for range pieces {
			if out.Delta(&schema.Delta{Delta: json.RawMessage(`{"content":"word "}`)}) != nil {
				return
			}
		}
		_ = p.Reply(&schema.Reply{Message: whole, FinishReason: "stop"})
	})
	piece := []byte(`data: {"id":"chatcmpl-alpha-1-1-1","object":"chat.completion.chunk","created":1790000000,"model":"policy","choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}` + "\n\n")
	direct := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		flush := http.NewResponseController(w)
		for range pieces {
			_, _ = w.Write(piece)
			_ = flush.Flush()
		}
	}))
	defer direct.Close()
	run := func(url, key string, number int) (time.Duration, time.Duration) {
		var all sync.WaitGroup
		var mu sync.Mutex
		var first time.Duration
		start := time.Now()
		for i := range streams {
			all.Go(func() {
				body := fmt.Sprintf(`{"model":"policy","stream":true,"messages":[{"role":"user","content":"%d %d"}]}`, number, i)
				req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+key)
				res, err := s.client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				defer res.Body.Close()
				if res.StatusCode != http.StatusOK {
					all, _ := io.ReadAll(res.Body)
					b.Errorf("%s: %s", res.Status, all)
					return
				}
				n := 0 // pieces: a worker may pass on several in one event
				for lines := bufio.NewScanner(res.Body); lines.Scan(); {
					if words := strings.Count(lines.Text(), "word "); words > 0 {
						if n += words; n == words {
							mu.Lock()
							first += time.Since(start)
							mu.Unlock()
						}
					}
				}
				if n < pieces {
					b.Errorf("%d pieces came", n)
				}
			})
		}
		all.Wait()
		return time.Since(start), first / streams
	}
	var ours, theirs, firstOurs, firstTheirs time.Duration
	for n := 0; b.Loop(); n++ {
		d, f := run(s.url, s.key, n)
		ours, firstOurs = ours+d, firstOurs+f
		d, f = run(direct.URL, "", n)
		theirs, firstTheirs = theirs+d, firstTheirs+f
	}
	chunks := float64(b.N * streams * pieces)
	b.ReportMetric(chunks/ours.Seconds(), "chunks/s")
	b.ReportMetric(chunks/theirs.Seconds(), "direct-chunks/s")
	b.ReportMetric(theirs.Seconds()/ours.Seconds(), "of_direct")
	b.ReportMetric(float64(firstOurs.Microseconds())/float64(b.N), "first-µs")
	b.ReportMetric(float64(firstTheirs.Microseconds())/float64(b.N), "direct-first-µs")
}

// BenchmarkThroughput runs 64 agents at once, each with a session and a growing
// conversation of about 32 KB, and sends the same bodies over a bare HTTP hop
// and a bare NATS request one after the other.
func BenchmarkThroughput(b *testing.B) {
	const agents, size = 64, 32 << 10
	srv := testenv.StartNATS(b, "alpha")
	srv.AdmitWorker(b, "w1")
	answer := []byte(strings.Repeat("y", 1024))
	message := json.RawMessage(`{"role":"assistant","content":"` + string(answer) + `"}`)
	gates := serveGates(b, srv, agents, schema.GateOptions{}, func(p *trainer.Pending) {
		_ = p.Reply(&schema.Reply{Message: message, FinishReason: "stop"})
	})
	http, nats := bareHTTP(b, answer), bareNATS(b, srv)
	ways := [...]func(agent int, body []byte) error{
		func(_ int, body []byte) error { return http(body) },
		func(_ int, body []byte) error { return nats(body) },
		func(agent int, body []byte) error {
			return post(gates[agent].client, gates[agent].url, gates[agent].key, body)
		},
	}
	var conversations [len(ways)][agents]growing
	var took [len(ways)]time.Duration
	const calls = 2 * growingTurns // two conversations
	for b.Loop() {
		for way, call := range ways {
			start := time.Now()
			var all sync.WaitGroup
			for agent := range agents {
				all.Go(func() {
					c := &conversations[way][agent]
					c.talk, c.size = chatTalk(), size
					for range calls {
						if err := call(agent, c.next()); err != nil {
							b.Error(way, err)
							return
						}
					}
				})
			}
			all.Wait()
			took[way] += time.Since(start)
		}
	}
	rate := func(way int) float64 { return float64(b.N*agents*calls) / took[way].Seconds() }
	b.ReportMetric(rate(0), "http/s")
	b.ReportMetric(rate(1), "nats/s")
	b.ReportMetric(rate(2), "calls/s")
	b.ReportMetric(rate(2)*(1/rate(0)+1/rate(1)), "of_pair")
}
