package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// benchCalls is the number of calls of a rollout in the benchmark. Each has 8 KB of new
// messages and an answer in 50 pieces.
const benchCalls = 20

// system is a server with a worker that runs rollouts, and a trainer that answers them.
type system struct {
	nats   testenv.NATS
	worker *broker.Broker
	client *modelcall.Client
	runs   int
}

func newSystem(b *testing.B) *system {
	s := &system{nats: testenv.StartNATS(b, "alpha")}
	s.worker = s.nats.Worker(b, "w1")
	var err error
	s.client, err = modelcall.NewClient(s.worker, "w1", "i1")
	harness.Must(b, err)
	b.Cleanup(s.client.Close)
	server, err := modelcall.NewServer(s.nats.Trainer(b, "alpha"), "alpha")
	harness.Must(b, err)
	piece, err := server.EncodeFrame(b.Context(), &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"a piece of an answer"}`)})
	harness.Must(b, err)
	final, err := server.EncodeFrame(b.Context(), &schema.Reply{V: 1, Message: json.RawMessage(`{"role":"assistant","content":"done"}`), FinishReason: "stop"})
	harness.Must(b, err)
	stop, err := server.Listen("", func(c modelcall.IncomingCall) {
		for i := range 50 {
			if err := c.Send(modelcall.Frame{Kind: schema.FrameDelta, Gen: "g1", Seq: i, Body: piece}); err != nil {
				b.Error(err)
			}
		}
		if err := c.Send(modelcall.Frame{Kind: schema.FrameFinal, Gen: "g1", Seq: 50, Body: final}); err != nil {
			b.Error(err)
		}
	})
	harness.Must(b, err)
	b.Cleanup(stop)
	return s
}

// run sends the messages of a worker for a rollout: states, events, pieces, calls, the result.
func (s *system) run(b *testing.B) time.Duration {
	s.runs++
	id := schema.ID(fmt.Sprintf("alpha-%d", s.runs))
	begin := time.Now()
	state := &schema.State{V: schema.Version, ID: id, Trainer: "alpha", Status: schema.StatusRunning, Worker: "w1", Attempt: 1}
	seq, err := s.worker.Messages.Put(b.Context(), subjects.State(id), state, 0)
	harness.Must(b, err)
	emit := func(e schema.Event) {
		e.Rollout, e.Attempt = id, 1
		s.worker.Events.Emit(&e)
	}
	emit(schema.Event{Type: schema.EventPhase, Phase: &schema.PhaseEvent{Name: "agent"}})
	message := json.RawMessage(`{"role":"user","content":"` + strings.Repeat("x", 8<<10) + `"}`)
	caller := s.client.Caller(harness.Request(id).WithDefaults(), nil)
	for i := range benchCalls {
		call := schema.Call{V: 1, Key: schema.Key{Rollout: id, Attempt: 1, Call: i + 1}.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{message}}
		emit(schema.Event{Type: schema.EventLLM, LLM: &schema.LLMEvent{Number: i + 1, Call: &call}})
		harness.Must(b, caller.Complete(b.Context(), call, func(f schema.Frame) error {
			if f.Delta != nil {
				s.worker.Events.Live(id, 1, i+1, f.Delta)
			}
			if f.Reply != nil {
				emit(schema.Event{Type: schema.EventLLM, LLM: &schema.LLMEvent{Number: i + 1, MS: 1, Reply: f.Reply}})
			}
			return nil
		}))
	}
	emit(schema.Event{Type: schema.EventPhase, Phase: &schema.PhaseEvent{Name: "agent", Ended: true, MS: 1}})
	result := &schema.Result{V: schema.Version, ID: id, Trainer: "alpha", Status: schema.StatusDone, Attempt: 1}
	_, err = s.worker.Messages.Put(b.Context(), subjects.Result(id), result, 0)
	harness.Must(b, err)
	state.Status = schema.StatusDone
	_, err = s.worker.Messages.Put(b.Context(), subjects.State(id), state, seq)
	harness.Must(b, err)
	return time.Since(begin)
}

// console serves a console of the system. Its browsers follow the table and the page of a
// running rollout.
func (s *system) console(b *testing.B, from *broker.Broker, trainer string, browsers int) {
	links := make(chan string, browsers+1)
	srv, err := console.New(console.Config{Source: &console.Bus{System: recorded.On(from), Trainer: trainer}, Link: func(url string) { links <- url }})
	harness.Must(b, err)
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := srv.Run(ctx); err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(func() { stop(); running.Wait() })
	for range browsers {
		jar, err := cookiejar.New(nil)
		harness.Must(b, err)
		c := &http.Client{Jar: jar, Transport: &http.Transport{}}
		b.Cleanup(c.CloseIdleConnections)
		link := <-links
		base, _, _ := strings.Cut(link, "/?")
		for _, url := range []string{link, base + "/api/rollouts", base + "/api/rollouts/alpha-0/live"} {
			q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			harness.Must(b, err)
			a, err := c.Do(q)
			harness.Must(b, err)
			if a.StatusCode != http.StatusOK {
				b.Fatalf("%s: got %s", url, a.Status)
			}
			if url == link {
				a.Body.Close()
				continue
			}
			lines := bufio.NewReader(a.Body)
			_, err = lines.ReadString('\n')
			harness.Must(b, err)
			running.Go(func() {
				defer a.Body.Close()
				_, _ = io.Copy(io.Discard, lines)
			})
		}
	}
}

// BenchmarkAConsole measures a rollout of benchCalls calls on four systems in turns:
// without a console, with one without browsers, and with ten browsers that follow the table and
// another rollout, with an operator's credential and with the trainer's. It reports the median
// of the ratios to the first one, each of the same turn.
func BenchmarkAConsole(b *testing.B) {
	names := []string{"none", "unseen", "operator", "trainer"}
	systems, times := map[string]*system{}, map[string][]float64{}
	for _, name := range names {
		s := newSystem(b)
		systems[name] = s
		_, err := s.worker.Messages.Put(b.Context(), subjects.State("alpha-0"), &schema.State{V: schema.Version, ID: "alpha-0", Trainer: "alpha", Status: schema.StatusRunning, Worker: "w1", Attempt: 1}, 0)
		harness.Must(b, err)
		switch name {
		case "unseen":
			s.console(b, s.nats.Ops(b), "", 0)
		case "operator":
			s.console(b, s.nats.Ops(b), "", 10)
		case "trainer":
			s.console(b, s.nats.Trainer(b, "alpha"), "alpha", 10)
		}
	}
	for turn := 0; b.Loop(); turn++ {
		for i := range names { // each of them comes first as often as the others
			name := names[(i+turn)%len(names)]
			times[name] = append(times[name], float64(systems[name].run(b).Microseconds()))
		}
	}
	median := func(list []float64) float64 {
		slices.Sort(list)
		return list[len(list)/2]
	}
	for _, name := range names[1:] {
		ratios := make([]float64, len(times[name]))
		for i, took := range times[name] {
			ratios[i] = took / times["none"][i]
		}
		b.ReportMetric(median(ratios), name+"/none")
	}
	b.ReportMetric(median(times["none"]), "none-µs")
}
