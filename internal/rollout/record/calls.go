package record

import (
	"fmt"
	"sync"
	"time"

	jsonv1 "github.com/go-json-experiment/json/v1"
	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/schema"
)

// Names of the files that every rollout with an agent and model calls may have.
const (
	TranscriptName = "transcript.jsonl.zst"
	StdoutName     = "agent.stdout.log"
	StderrName     = "agent.stderr.log"
)

// MaxFile is the maximum size of one file in bytes, in its stored form.
const MaxFile = 64 << 20

// window is how far back, in bytes, the compression of a transcript finds repetitions.
// Each call repeats the prompt ids of the last one: this finds the ids of 300,000 tokens. Every
// rollout has so much memory until it ends.
const window = 2 << 20

// Calls observes the sessions of the gate: it emits the events of calls and keeps the
// transcript. A goroutine prepares the records of calls, so that a call does not wait
// for them.
type Calls struct {
	events  *Events
	live    func(id schema.ID, attempt, call int, d *schema.Delta)
	log     zerolog.Logger
	metrics *telemetry.Rollouts
	counted *telemetry.Calls

	pending sync.WaitGroup // functions queued or running

	mu      sync.Mutex
	queue   []func()
	working bool
	lines   *spool.File // compressed lines of the transcript
	zip     *zstd.Encoder
	leftOut int // number of lines for which the transcript has no room
}

// later queues f. The queue runs in order, in a goroutine of its own.
func (c *Calls) later(f func()) {
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
func (c *Calls) work() {
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

// Wait waits until all calls that have ended are recorded.
func (c *Calls) Wait() { c.pending.Wait() }

// CallBegan implements gate.Observer. It records only the messages that the
// last call did not have.
func (c *Calls) CallBegan(number int, call *schema.Call) {
	at := time.Now()
	c.counted.Began(number)
	c.later(func() {
		delta := call.Delta()
		c.write(&schema.TranscriptLine{At: at.UnixMilli(), Call: number, Request: &delta})
		c.events.Emit(&schema.Event{Type: schema.EventLLM, LLM: &schema.LLMEvent{Number: number, Call: &delta, Note: gate.NoteOf(call)}})
	})
}

// CallDelta implements gate.Observer. It masks the key in single pieces; a key that is
// split over several short pieces is not found.
func (c *Calls) CallDelta(number int, d *schema.Delta) {
	c.live(c.events.rollout, c.events.attempt, number, hide(c.events.secrets, d))
}

// CallWaits implements gate.Observer.
func (c *Calls) CallWaits(w schema.WaitEvent) {
	c.counted.Waits(&w)
	c.later(func() { c.events.Emit(&schema.Event{Type: schema.EventWait, Wait: &w}) })
}

// CallEnded implements gate.Observer.
func (c *Calls) CallEnded(number int, e gate.CallEnd) {
	c.counted.Ended(number, e.Took, e.Reply, e.Fault)
	at := time.Now()
	c.later(func() { c.recordEnd(at, number, e) })
}

func (c *Calls) recordEnd(at time.Time, number int, e gate.CallEnd) {
	line := &schema.TranscriptLine{At: at.UnixMilli(), Call: number, Gen: e.Gen, MS: e.Took.Milliseconds(), Fault: e.Fault}
	event := &schema.LLMEvent{Number: number, Gen: e.Gen, MS: e.Took.Milliseconds(), Fault: e.Fault, Note: e.Note}
	if e.Reply != nil {
		line.Reply, event.Reply = e.Reply, e.Reply
	}
	c.write(line)
	c.events.Emit(&schema.Event{Type: schema.EventLLM, LLM: event})
}

// ToolEnded implements gate.Observer.
func (c *Calls) ToolEnded(e gate.ToolEnd) {
	c.metrics.ToolEnded(e.Took, e.Result != nil && e.Result.IsError, e.Fault)
	at := time.Now()
	c.later(func() { c.recordTool(at, e) })
}

func (c *Calls) recordTool(at time.Time, e gate.ToolEnd) {
	line := &schema.TranscriptLine{At: at.UnixMilli(), Tool: e.Call.Name, Arguments: e.Call.Arguments, MS: e.Took.Milliseconds()}
	event := agents.Event{Kind: "trainer_tool", Tool: e.Call.Name, Input: e.Call.Arguments}
	if e.Result != nil {
		event.Output = e.Result.Text
		line.Text, line.IsError = event.Output, e.Result.IsError
	} else {
		event.Text = e.Fault.Message
		line.Fault = e.Fault
	}
	c.write(line)
	c.events.step(&event)
}

// write adds one line to the transcript.
func (c *Calls) write(line *schema.TranscriptLine) {
	data, err := jsonv1.Marshal(hide(c.events.secrets, line))
	if err != nil {
		c.log.Warn().Err(err).Msg("a call is missing in the transcript")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zip == nil {
		if c.zip, err = zstd.NewWriter(c.lines, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(window)); err != nil {
			c.log.Warn().Err(err).Msg("the transcript cannot be written")
			return
		}
	}
	if c.leftOut > 0 || c.lines.Size()+int64(len(data)) > MaxFile { // later lines depend on a line that was left out
		c.leftOut++
		return
	}
	_, _ = c.zip.Write(append(data, '\n')) // it never fails
}

// Transcript is the compressed record of all calls.
type Transcript struct {
	lines   *spool.File
	leftOut int // number of lines for which there was no room
}

// End completes the transcript. It returns nil if there was no call.
func (c *Calls) End() *Transcript {
	c.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.zip == nil {
		return nil
	}
	if c.leftOut > 0 {
		_, _ = fmt.Fprintf(c.zip, "{\"left_out\":%d}\n", c.leftOut)
	}
	_ = c.zip.Close() // it never fails
	c.metrics.TranscriptMade(int(c.lines.Size()))
	return &Transcript{c.lines, c.leftOut}
}
