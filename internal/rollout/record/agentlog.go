package record

import (
	"bytes"
	"io"
	"strings"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
)

// maxLog is the maximum number of bytes kept of each of an agent's streams.
const maxLog = 16 << 20

// AgentLog keeps the streams of one run of an agent and shows them as events.
type AgentLog struct {
	Stdout, Stderr io.Writer

	calls     *Calls
	out, err  capped
	lastError string // the last error event; a later sign of success clears it
	lines     []*lineWriter
}

// AgentLog returns a log for a run of an agent. parse finds events in its output; nil:
// it has none. The phase keeps the end of stderr.
func (r *Record) AgentLog(p *Phase, parse func(line []byte) *agents.Event) *AgentLog {
	l := &AgentLog{calls: r.Calls, out: capped{limit: maxLog}, err: capped{limit: maxLog}}
	r.Calls.forget()
	stdout := &lineWriter{left: maxLog, line: func(line []byte) {
		if parse != nil {
			if e := parse(line); e != nil {
				l.heard(e)
				r.Events.step(e)
				return
			}
		}
		r.Events.log("agent", "stdout", line)
	}}
	stderr := r.Events.lines("agent", "stderr")
	l.lines = []*lineWriter{stdout, stderr}
	l.Stdout, l.Stderr = io.MultiWriter(&l.out, stdout), io.MultiWriter(&l.err, &p.tail, stderr)
	return l
}

func (l *AgentLog) heard(e *agents.Event) {
	switch e.Kind {
	case "error":
		l.lastError = e.Text
	case "text", "tool_result":
		l.lastError = ""
	}
}

// Finish emits a last line that has no line end.
func (l *AgentLog) Finish() {
	for _, w := range l.lines {
		w.flush()
	}
}

// Failed reports whether the last sign of the agent was an error.
func (l *AgentLog) Failed() bool { return l.lastError != "" }

// Files returns the agent's streams by the names of their artifacts, without empty
// ones.
func (l *AgentLog) Files() map[string][]byte {
	out := map[string][]byte{}
	for name, s := range map[string]*capped{StdoutName: &l.out, StderrName: &l.err} {
		if s.buf.Len() > 0 {
			out[name] = s.buf.Bytes()
		}
	}
	return out
}

// Why returns the known reasons of the agent's failure as text to append.
func (l *AgentLog) Why() string {
	var b strings.Builder
	if refused := l.calls.lastRefusal(); refused != "" {
		b.WriteString("; its last refused model call: " + schema.Clip(refused, 1000))
	}
	switch {
	case l.lastError != "":
		b.WriteString("; it said: " + schema.Clip(l.lastError, 1000))
	case l.err.buf.Len() > 0:
		text := strings.TrimSpace(l.err.buf.String())
		b.WriteString("; stderr: " + text[max(len(text)-1000, 0):])
	}
	return b.String()
}

// capped keeps the first limit bytes written to it.
type capped struct {
	buf   bytes.Buffer
	limit int
}

func (c *capped) Write(p []byte) (int, error) {
	if room := c.limit - c.buf.Len(); room > 0 {
		c.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
