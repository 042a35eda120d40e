package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/schema"
)

// recorder emits a rollout's events and keeps the agent's log and the
// transcript. The keys of the rollout's sessions are masked in all of them. A goroutine prepares the records of calls, so that a
// call does not wait for them.
type recorder struct {
	r       *Rollout
	secrets secrets

	pending sync.WaitGroup // functions queued or running

	mu      sync.Mutex
	queue   []func()
	working bool
	index   int64
	lines   bytes.Buffer // compressed lines of the transcript
	zip     *zstd.Encoder
	leftOut int    // number of lines for which the transcript has no room
	refused string // the trainer's last refusal of a call
	out     capped
	err     capped
}

const (
	transcriptName = "transcript.jsonl.zst"
	maxLog         = 16 << 20 // maximum bytes kept of each of the agent's streams
	maxShown       = 1 << 20  // maximum bytes of each phase's output shown as events
	maxLine        = 256 << 10
)

func newRecorder(r *Rollout) *recorder {
	return &recorder{r: r, out: capped{limit: maxLog}, err: capped{limit: maxLog}}
}

func (c *recorder) emit(e *schema.Event) {
	c.mu.Lock()
	c.index++
	e.Index = c.index
	c.mu.Unlock()
	e.Rollout, e.Attempt = c.r.Request.ID, c.r.Attempt
	c.r.Services.Emit(hide(&c.secrets, e))
}

// later queues f. The queue runs in order, in a goroutine of its own.
func (c *recorder) later(f func()) {
	c.pending.Add(1)
	c.mu.Lock()
	c.queue = append(c.queue, f)
	begin := !c.working
	c.working = true
	c.mu.Unlock()
	if begin {
		go c.work()
	}
}

// work runs the queue and returns when it is empty.
func (c *recorder) work() {
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.queue, c.working = nil, false
			c.mu.Unlock()
			return
		}
		f := c.queue[0]
		c.queue[0] = nil
		c.queue = c.queue[1:]
		c.mu.Unlock()
		f()
		c.pending.Done()
	}
}

// settle waits until the queue is empty. Call later no more after it.
func (c *recorder) settle() { c.pending.Wait() }

// CallBegan implements gate.Observer. It records only the messages that the
// last call did not have.
func (c *recorder) CallBegan(number int, call *schema.Call) {
	at := time.Now()
	c.later(func() {
		told := call.Delta()
		c.write(&schema.TranscriptLine{At: at.UnixMilli(), Call: number, Request: &told})
		c.emit(&schema.Event{Type: schema.EventLLM, LLM: &schema.LLMEvent{Number: number, Call: &told, Note: gate.NoteOf(call)}})
	})
}

// CallDelta implements gate.Observer. It removes the key from single pieces; a
// key that is split over two pieces is not found.
func (c *recorder) CallDelta(number int, d *schema.Delta) {
	c.r.Services.Live(c.r.Request.ID, c.r.Attempt, number, hide(&c.secrets, d))
}

// CallWaits implements gate.Observer.
func (c *recorder) CallWaits(w schema.WaitEvent) {
	c.later(func() { c.emit(&schema.Event{Type: schema.EventWait, Wait: &w}) })
}

// CallEnded implements gate.Observer.
func (c *recorder) CallEnded(number int, e gate.CallEnd) {
	if e.Fault != nil {
		c.mu.Lock()
		c.refused = e.Fault.Message
		c.mu.Unlock()
	}
	at := time.Now()
	c.later(func() { c.tellEnd(at, number, e) })
}

func (c *recorder) tellEnd(at time.Time, number int, e gate.CallEnd) {
	line := &schema.TranscriptLine{At: at.UnixMilli(), Call: number, Gen: e.Gen, MS: e.Took.Milliseconds(), Fault: e.Fault}
	told := &schema.LLMEvent{Number: number, Gen: e.Gen, MS: e.Took.Milliseconds(), Fault: e.Fault, Note: e.Note}
	if e.Reply != nil {
		line.Reply, told.Reply = e.Reply, e.Reply
	}
	c.write(line)
	c.emit(&schema.Event{Type: schema.EventLLM, LLM: told})
}

// ToolEnded implements gate.Observer.
func (c *recorder) ToolEnded(e gate.ToolEnd) {
	at := time.Now()
	c.later(func() { c.tellTool(at, e) })
}

func (c *recorder) tellTool(at time.Time, e gate.ToolEnd) {
	line := &schema.TranscriptLine{At: at.UnixMilli(), Tool: e.Call.Name, Arguments: e.Call.Arguments, MS: e.Took.Milliseconds()}
	told := agents.Event{Kind: "trainer_tool", Tool: e.Call.Name, Input: e.Call.Arguments}
	if e.Result != nil {
		told.Output = e.Result.Text
		line.Text, line.IsError = told.Output, e.Result.IsError
	} else {
		told.Text = e.Fault.Message
		line.Fault = e.Fault
	}
	c.write(line)
	if data, err := json.Marshal(told); err == nil {
		c.emit(&schema.Event{Type: schema.EventStep, Step: data})
	}
}

// write adds one line to the transcript.
func (c *recorder) write(line *schema.TranscriptLine) {
	data, err := jsonv1.Marshal(hide(&c.secrets, line))
	if err != nil {
		c.r.Log.Warn().Err(err).Msg("a call is missing in the transcript")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zip == nil {
		// Each call repeats the prompt ids of the last one. A window smaller than
		// the standard 4 MB would not find the repetition.
		if c.zip, err = zstd.NewWriter(&c.lines, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true)); err != nil {
			c.r.Log.Warn().Err(err).Msg("the transcript cannot be written")
			return
		}
	}
	if c.leftOut > 0 || c.lines.Len()+len(data) > maxKept { // later lines depend on a line that was left out
		c.leftOut++
		return
	}
	_, _ = c.zip.Write(append(data, '\n')) // a write into memory cannot fail
}

// transcript completes the transcript. It returns the compressed bytes, nil if
// there was no call, and the number of lines left out.
func (c *recorder) transcript() (data []byte, leftOut int) {
	c.settle()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zip == nil {
		return nil, 0
	}
	if c.leftOut > 0 {
		_, _ = fmt.Fprintf(c.zip, "{\"left_out\":%d}\n", c.leftOut)
	}
	_ = c.zip.Close() // a write into memory cannot fail
	return c.lines.Bytes(), c.leftOut
}

// files returns the agent's streams since the last call of files, and resets
// them.
func (c *recorder) files() map[string][]byte {
	out := map[string][]byte{}
	for name, s := range map[string]*capped{"agent.stdout.log": &c.out, "agent.stderr.log": &c.err} {
		if s.buf.Len() > 0 {
			out[name] = s.buf.Bytes()
		}
		s.buf = bytes.Buffer{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = ""
	return out
}

// why returns the known reasons of an agent's failure as text to append.
func (c *recorder) why(log *agentLog) string {
	c.mu.Lock()
	refused := c.refused
	c.mu.Unlock()
	var b strings.Builder
	if refused != "" {
		b.WriteString("; its last refused model call: " + schema.Clip(refused, 1000))
	}
	switch {
	case log.lastError != "":
		b.WriteString("; it said: " + schema.Clip(log.lastError, 1000))
	case c.err.buf.Len() > 0:
		text := strings.TrimSpace(c.err.buf.String())
		b.WriteString("; stderr: " + text[max(len(text)-1000, 0):])
	}
	return c.secrets.text(b.String())
}

// logWriter returns a writer that emits each line as an event.
func (c *recorder) logWriter(source, stream string) io.Writer {
	return &lineWriter{line: func(line []byte) {
		c.emit(&schema.Event{Type: schema.EventLog, Log: &schema.LogEvent{Source: source, Stream: stream, Text: schema.Clip(c.secrets.text(string(line)), maxLine)}})
	}, left: maxShown}
}

// agentLog parses the agent's streams into events.
type agentLog struct {
	out, err  io.Writer
	lastError string // the last error event; a later sign of success clears it
	lines     []*lineWriter
}

func (c *recorder) agentLog(tail io.Writer) *agentLog {
	l := &agentLog{}
	parse := c.r.agent.ParseEvent
	stdout := &lineWriter{left: maxLog, line: func(line []byte) {
		if parse != nil {
			if e := parse(line); e != nil {
				c.step(l, e)
				return
			}
		}
		c.emit(&schema.Event{Type: schema.EventLog, Log: &schema.LogEvent{Source: "agent", Stream: "stdout", Text: schema.Clip(c.secrets.text(string(line)), maxLine)}})
	}}
	stderr, _ := c.logWriter("agent", "stderr").(*lineWriter)
	l.lines = []*lineWriter{stdout, stderr}
	l.out, l.err = io.MultiWriter(&c.out, stdout), io.MultiWriter(&c.err, tail, stderr)
	return l
}

func (c *recorder) step(l *agentLog, e *agents.Event) {
	switch e.Kind {
	case "error":
		l.lastError = e.Text
	case "text", "tool_result":
		l.lastError = ""
	}
	data, err := json.Marshal(e)
	if err != nil {
		return
	}
	c.emit(&schema.Event{Type: schema.EventStep, Step: data})
}

// finish emits a last line that has no line end.
func (l *agentLog) finish() {
	for _, w := range l.lines {
		w.flush()
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
