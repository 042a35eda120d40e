package gate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/schema"
)

// BenchmarkOpenSessions opens 10,000 sessions with one call of 1 KB each, and
// measures the memory of one.
func BenchmarkOpenSessions(b *testing.B) {
	const sessions = 10_000
	grow := growing{talk: chatTalk(), size: 1 << 10}
	body := string(grow.next())
	memory := gate.NewMemory(1<<30, 0) // a worker's sessions share one
	for b.Loop() {
		before := heap()
		open := make([]*gate.Session, sessions)
		for i := range open {
			open[i] = openBench(b.Context(), memory, okModel{})
			if err := callBench(open[i], body); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(heap()-before)/sessions, "B/session")
		for _, s := range open {
			s.Close()
		}
	}
}

// BenchmarkOpenCalls opens a call of 256 KB in each of 200 sessions, the second
// of its conversation, and measures the memory as a part of the bodies' size.
func BenchmarkOpenCalls(b *testing.B) {
	const sessions = 200
	grow := growing{talk: chatTalk(), size: 256 << 10}
	first := string(grow.next())
	second := string(grow.next())
	memory := gate.NewMemory(1<<30, 0)
	for b.Loop() {
		before := heap()
		release := make(chan struct{})
		var asked, all sync.WaitGroup
		open := make([]*gate.Session, sessions)
		asked.Add(sessions)
		for i := range open {
			calls := 0
			open[i] = openBench(b.Context(), memory, okModel{func() {
				if calls++; calls == 2 {
					asked.Done()
					<-release
				}
			}})
			all.Go(func() {
				if err := errors.Join(callBench(open[i], first), callBench(open[i], second)); err != nil {
					b.Error(err)
				}
			})
		}
		asked.Wait()
		b.ReportMetric(float64(heap()-before)/float64(sessions*len(second)), "x-of-size")
		close(release)
		all.Wait()
		for _, s := range open {
			s.Close()
		}
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // two runs empty the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

func openBench(ctx context.Context, m *gate.Memory, model gate.Model) *gate.Session {
	r := schema.Request{Gate: schema.GateOptions{MaxRepeats: 1 << 30}}.WithDefaults()
	return gate.Open(ctx, gate.Config{Rollout: "alpha-1", Attempt: 1, ModelName: "policy", Options: r.Gate, Model: model, Memory: m, Dialects: gate.Dialects(), Log: zerolog.Nop()})
}

func callBench(s *gate.Session, body string) error {
	req := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+s.Key())
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, req); w.Code != http.StatusOK {
		return fmt.Errorf("status %d: %s", w.Code, w.Body)
	}
	return nil
}

// okModel answers at once, or after before, if that is set.
type okModel struct{ before func() }

func (m okModel) Complete(_ context.Context, _ schema.Call, frames func(schema.Frame) error) error {
	if m.before != nil {
		m.before()
	}
	r := schema.Reply{V: 1, Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}
	return frames(schema.Frame{Kind: schema.FrameFinal, Gen: "g", Reply: &r})
}
