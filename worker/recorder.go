package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"

	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
)

// recorder tells those who watch what a rollout does, and keeps the agent's
// log and the transcript. The session's key is taken out of all of it: a model
// that prints its environment must not spread it. What it has to say of a call
// it works out beside the call, which does not wait for it.
type recorder struct {
	r *Rollout

	pending sync.WaitGroup // what is queued or worked on

	mu      sync.Mutex
	queue   []func()
	working bool
	index   int64
	key     string
	lines   bytes.Buffer // of the transcript
	zip     *zstd.Encoder
	leftOut int    // lines that the transcript has no room for
	refused string // what the trainer last refused a call with
	out     capped
	err     capped
}

const (
	transcriptName = "transcript.jsonl.zst"
	maxLog         = 16 << 20 // bytes of each of the agent's streams that are kept
	maxShown       = 1 << 20  // bytes of each phase's output that are shown as events
	maxLine        = 256 << 10
)

func newRecorder(r *Rollout) *recorder {
	return &recorder{r: r, out: capped{limit: maxLog}, err: capped{limit: maxLog}}
}

func (c *recorder) setKey(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key = key
}

func (c *recorder) redact(s string) string {
	c.mu.Lock()
	key := c.key
	c.mu.Unlock()
	if key == "" {
		return s
	}
	return strings.ReplaceAll(s, key, "[key]")
}

// redactFile takes the key out of a file without changing its length, which an
// archive depends on.
func (c *recorder) redactFile(data []byte) []byte {
	c.mu.Lock()
	key := c.key
	c.mu.Unlock()
	if key == "" || !bytes.Contains(data, []byte(key)) {
		return data
	}
	mask := "[key]" + strings.Repeat("*", max(len(key)-len("[key]"), 0))
	return bytes.ReplaceAll(data, []byte(key), []byte(mask[:len(key)]))
}

func (c *recorder) redactRaw(raw json.RawMessage) json.RawMessage {
	c.mu.Lock()
	key := c.key
	c.mu.Unlock()
	if key == "" || !bytes.Contains(raw, []byte(key)) {
		return raw
	}
	return bytes.ReplaceAll(raw, []byte(key), []byte("[key]"))
}

func (c *recorder) emit(e *schema.Event) {
	c.mu.Lock()
	c.index++
	e.Index = c.index
	c.mu.Unlock()
	e.Rollout, e.Attempt = c.r.Request.ID, c.r.Attempt
	c.r.Services.Emit(e)
}

// later has f done, after what was queued before.
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

// work does what is queued, and ends when nothing is.
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

// settle waits until all of it is done. Nothing may be added any more.
func (c *recorder) settle() { c.pending.Wait() }

// CallBegan implements gate.Observer. Only what is new against the last call
// is told and written down.
func (c *recorder) CallBegan(number int, call *schema.Call) {
	c.later(func() {
		told := call.Delta()
		fresh := told.Messages
		told.Messages = make([]json.RawMessage, 0, len(fresh))
		for _, m := range fresh {
			told.Messages = append(told.Messages, c.redactRaw(m))
		}
		c.write(map[string]any{"call": number, "request": &told})
		c.emit(&schema.Event{Type: schema.EventLLM, LLM: &schema.LLMEvent{Number: number, Call: &told}})
	})
}

// CallDelta implements gate.Observer. The key is taken out of what lies within
// one piece; a model cannot be kept from spelling it in two.
func (c *recorder) CallDelta(number int, d *schema.Delta) {
	shown := schema.Delta{V: d.V, Delta: c.redactRaw(d.Delta)}
	c.r.Services.Live(c.r.Request.ID, c.r.Attempt, number, &shown)
}

// CallEnded implements gate.Observer.
func (c *recorder) CallEnded(number int, e gate.CallEnd) {
	if e.Fault != nil {
		c.mu.Lock()
		c.refused = e.Fault.Message
		c.mu.Unlock()
	}
	c.later(func() { c.tellEnd(number, e) })
}

func (c *recorder) tellEnd(number int, e gate.CallEnd) {
	line := map[string]any{"call": number, "gen": e.Gen, "ms": e.Took.Milliseconds()}
	told := &schema.LLMEvent{Number: number, Gen: e.Gen, MS: e.Took.Milliseconds(), Fault: e.Fault}
	if e.Reply != nil {
		reply := *e.Reply
		reply.Message = c.redactRaw(reply.Message)
		line["reply"] = &reply
		told.Reply = &reply
	}
	if e.Fault != nil {
		line["fault"] = e.Fault
	}
	c.write(line)
	c.emit(&schema.Event{Type: schema.EventLLM, LLM: told})
}

// ToolEnded implements gate.Observer.
func (c *recorder) ToolEnded(e gate.ToolEnd) { c.later(func() { c.tellTool(e) }) }

func (c *recorder) tellTool(e gate.ToolEnd) {
	line := map[string]any{"tool": e.Call.Name, "arguments": c.redactRaw(e.Call.Arguments), "ms": e.Took.Milliseconds()}
	told := agents.Event{Kind: "trainer_tool", Tool: e.Call.Name, Input: c.redactRaw(e.Call.Arguments)}
	if e.Result != nil {
		told.Output = c.redact(e.Result.Text)
		line["text"], line["is_error"] = told.Output, e.Result.IsError
	} else {
		told.Text = e.Fault.Message
		line["fault"] = e.Fault
	}
	c.write(line)
	if data, err := json.Marshal(told); err == nil {
		c.emit(&schema.Event{Type: schema.EventStep, Step: data})
	}
}

// write adds one line to the transcript.
func (c *recorder) write(line map[string]any) {
	data, err := jsonv1.Marshal(line)
	if err != nil {
		c.r.Log.Warn().Err(err).Msg("a call is missing in the transcript")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zip == nil {
		// A window of less than the standard 4 MB would miss that each call repeats
		// the prompt ids of the last one.
		if c.zip, err = zstd.NewWriter(&c.lines, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true)); err != nil {
			c.r.Log.Warn().Err(err).Msg("the transcript cannot be written")
			return
		}
	}
	if c.leftOut > 0 || c.lines.Len()+len(data) > maxKept { // a later line would build on what is missing
		c.leftOut++
		return
	}
	_, _ = c.zip.Write(append(data, '\n')) // into memory
}

// transcript ends it and gives its bytes, nil when there was no call, and how
// many lines it had no room for.
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
	_ = c.zip.Close() // into memory
	return c.lines.Bytes(), c.leftOut
}

// files are the agent's own streams.
func (c *recorder) files() map[string][]byte {
	out := map[string][]byte{}
	for name, s := range map[string]*capped{"agent.stdout.log": &c.out, "agent.stderr.log": &c.err} {
		if s.buf.Len() > 0 {
			out[name] = s.buf.Bytes()
		}
	}
	return out
}

// why adds what is known about an agent's failure.
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
	return c.redact(b.String())
}

// logWriter shows output as events, line by line.
func (c *recorder) logWriter(source, stream string) io.Writer {
	return &lineWriter{line: func(line []byte) {
		c.emit(&schema.Event{Type: schema.EventLog, Log: &schema.LogEvent{Source: source, Stream: stream, Text: schema.Clip(c.redact(string(line)), maxLine)}})
	}, left: maxShown}
}

// agentLog takes the agent's streams apart.
type agentLog struct {
	out, err  io.Writer
	lastError string // the last error event, cleared by a later sign of success
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
		c.emit(&schema.Event{Type: schema.EventLog, Log: &schema.LogEvent{Source: "agent", Stream: "stdout", Text: schema.Clip(c.redact(string(line)), maxLine)}})
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
	c.emit(&schema.Event{Type: schema.EventStep, Step: c.redactRaw(data)})
}

// finish shows what stood on a last line without an end.
func (l *agentLog) finish() {
	for _, w := range l.lines {
		w.flush()
	}
}

// lineWriter cuts a stream into lines. What exceeds left is not shown.
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

// capped keeps the first bytes that are written to it.
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
