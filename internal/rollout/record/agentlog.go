package record

import (
	"context"
	"errors"
	"io"
	"strings"
	"unicode"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/schema"
)

// maxLog is the maximum number of bytes kept of each of an agent's streams.
const maxLog = 16 << 20

// AgentLog keeps the streams of one run of an agent and shows them as events.
type AgentLog struct {
	Stdout, Stderr io.Writer

	out, err  capped
	lastError string // the last error event; a later sign of success clears it
	lines     []*lineWriter
}

// AgentLog returns a log for a run of an agent. parse finds events in its output; nil:
// it has none. The phase keeps the end of stderr.
func (r *Record) AgentLog(p *Phase, parse func(line []byte) *agents.Event) *AgentLog {
	l := &AgentLog{out: capped{r.Files.New(), maxLog}, err: capped{r.Files.New(), maxLog}}
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

// Keep stores the agent's streams, without empty ones. It ends the log.
func (l *AgentLog) Keep(ctx context.Context, r *Record, nameOf func(string) string) error {
	for _, s := range []struct {
		name string
		*capped
	}{{StdoutName, &l.out}, {StderrName, &l.err}} {
		if s.file.Size() == 0 {
			continue
		}
		if err := r.KeepFile(ctx, nameOf(s.name), s.file); err != nil {
			return err
		}
	}
	return nil
}

// Why returns the reason that the agent gave for its failure as text to append.
func (l *AgentLog) Why() string {
	switch {
	case l.lastError != "":
		return "; it said: " + schema.Clip(l.lastError, 1000)
	case l.err.file.Size() > 0:
		return "; stderr: " + l.err.last(1000)
	default:
		return ""
	}
}

// capped keeps the first bytes written to it, at most limit.
type capped struct {
	file  *spool.File
	limit int64
}

func (c *capped) Write(p []byte) (int, error) {
	if room := c.limit - c.file.Size(); room > 0 {
		_, _ = c.file.Write(p[:min(room, int64(len(p)))]) // it never fails
	}
	return len(p), nil
}

// last returns the last n bytes without white space at the ends of the whole text.
func (c *capped) last(n int) string {
	content, err := c.file.Content()
	if err != nil {
		return err.Error()
	}
	for look := int64(4 * n); ; look *= 4 {
		look = min(look, content.Size())
		data := make([]byte, look)
		if _, err := content.ReadAt(data, content.Size()-look); err != nil && !errors.Is(err, io.EOF) {
			return err.Error()
		}
		if look == content.Size() {
			text := strings.TrimSpace(string(data))
			return text[max(len(text)-n, 0):]
		}
		text := strings.TrimRightFunc(string(data), unicode.IsSpace)
		if len(text) >= n {
			return text[len(text)-n:]
		}
	}
}
