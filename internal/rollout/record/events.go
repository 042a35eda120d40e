package record

import (
	"bytes"
	"encoding/json"
	"sync"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
)

const (
	maxShown = 1 << 20 // maximum bytes of each phase's output shown as events
	maxLine  = 256 << 10
)

// Events sends the events of a rollout.
type Events struct {
	rollout schema.ID
	attempt int
	secrets *secrets
	send    func(*schema.Event)

	mu    sync.Mutex
	index int64
}

// Emit sends an event.
func (v *Events) Emit(e *schema.Event) {
	v.mu.Lock()
	v.index++
	e.Index = v.index
	v.mu.Unlock()
	e.Rollout, e.Attempt = v.rollout, v.attempt
	v.send(hide(v.secrets, e))
}

// lines returns a writer that emits each line as an event.
func (v *Events) lines(source, stream string) *lineWriter {
	return &lineWriter{left: maxShown, line: func(line []byte) { v.log(source, stream, line) }}
}

func (v *Events) log(source, stream string, line []byte) {
	v.Emit(&schema.Event{Type: schema.EventLog, Log: &schema.LogEvent{Source: source, Stream: stream, Text: schema.Clip(string(line), maxLine)}})
}

// step emits an event of an agent, or of a tool that runs for it.
func (v *Events) step(e *agents.Event) {
	if data, err := json.Marshal(e); err == nil {
		v.Emit(&schema.Event{Type: schema.EventStep, Step: data})
	}
}

// lineWriter splits a stream into lines. Beyond left bytes it drops them.
type lineWriter struct {
	line func([]byte)
	buf  []byte
	left int
}

func (w *lineWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			if w.buf = append(w.buf, rest...); len(w.buf) > maxLine {
				w.flush()
			}
			break
		}
		w.buf = append(w.buf, rest[:i]...)
		rest = rest[i+1:]
		w.flush()
	}
	return len(p), nil
}

func (w *lineWriter) flush() {
	if len(w.buf) > 0 && w.left > 0 {
		w.left -= len(w.buf)
		w.line(w.buf)
	}
	w.buf = w.buf[:0]
}
