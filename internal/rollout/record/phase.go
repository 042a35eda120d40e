package record

import (
	"io"
	"time"

	"github.com/turngate/turngate/schema"
)

// Phase is one stage of a running rollout.
type Phase struct {
	Name string
	Exit *schema.Exit // of the phase's command, if it runs one

	r     *Record
	start time.Time
	tail  tail
}

// Begin begins a phase.
func (r *Record) Begin(name string) *Phase {
	r.Events.Emit(&schema.Event{Type: schema.EventPhase, Phase: &schema.PhaseEvent{Name: name}})
	return &Phase{Name: name, r: r, start: time.Now()}
}

// Output returns a writer that shows a command's output as events and keeps its
// end in the result.
func (p *Phase) Output(stream string) io.Writer {
	return io.MultiWriter(&p.tail, p.r.Events.lines(p.Name, stream))
}

// Tail returns the end of the output so far.
func (p *Phase) Tail() string { return p.tail.String() }

// End ends the phase; its event has the fault.
func (p *Phase) End(fault *schema.Fault) {
	lasted := time.Since(p.start)
	p.r.Telemetry.PhaseEnded(p.Name, lasted, fault)
	took := lasted.Milliseconds()
	p.r.mu.Lock()
	p.r.result.Phases = append(p.r.result.Phases, schema.Phase{Name: p.Name, Start: p.start.UnixMilli(), MS: took, Exit: p.Exit, Output: p.Tail()})
	p.r.mu.Unlock()
	p.r.Events.Emit(&schema.Event{Type: schema.EventPhase, Phase: &schema.PhaseEvent{Name: p.Name, Ended: true, MS: took, Exit: p.Exit, Fault: fault}})
}

// tailSize is the maximum output of a phase in its result, in bytes.
const tailSize = 16 << 10

// tail keeps the last bytes written to it. One goroutine writes both stdout and
// stderr of a command.
type tail struct {
	buf     []byte
	dropped bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
		t.dropped = true
	}
	return len(p), nil
}

func (t *tail) String() string {
	text := schema.Clip(string(t.buf), 2*tailSize)
	if t.dropped {
		return "[…]" + text
	}
	return text
}
