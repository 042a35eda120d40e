// Package record keeps the account of one attempt at a rollout: its result, notes,
// events, transcript, files and log lines. All of them leave the rollout through a
// Record, which masks the keys of the rollout's sessions in every text. Nothing else
// writes the result.
package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/schema"
)

// Exits receive all data that leaves a rollout.
type Exits struct {
	Emit func(*schema.Event)
	Live func(id schema.ID, attempt, call int, d *schema.Delta)
	// Put stores a file among the artifacts of the rollout.
	Put       func(ctx context.Context, name string, file broker.File) (schema.Artifact, error)
	Spool     *spool.Folder // has the files of the rollout until they are stored
	Log       zerolog.Logger
	Telemetry *telemetry.Rollouts // nil: none
}

// Record is the account of one attempt at a rollout.
type Record struct {
	Log       zerolog.Logger // of the worker, for lines about this rollout
	Events    *Events
	Calls     *Calls
	Files     *Files
	Telemetry *telemetry.Rollouts

	secrets *secrets
	put     func(ctx context.Context, name string, file broker.File) (schema.Artifact, error)

	mu     sync.Mutex
	result schema.Result
	full   *broker.FullError // error of the last file that had no room in the trainer's bucket; nil: all were stored
}

// New returns the record of an attempt at a request on a worker.
func New(q *schema.Request, attempt int, worker string, x Exits) *Record {
	s := &secrets{}
	r := &Record{
		Log: maskedLog(s, x.Log), Telemetry: x.Telemetry, secrets: s, put: x.Put, Files: &Files{folder: x.Spool},
		Events: &Events{rollout: q.ID, attempt: attempt, secrets: s, send: x.Emit},
		result: schema.Result{
			V: schema.Version, ID: q.ID, Trainer: q.Trainer, Group: q.Group, Index: q.Index, Task: q.Task.Name, Attempt: attempt,
			Status: schema.StatusDone, Worker: worker, Agent: q.Agent.Name, Labels: q.Labels, Notes: slices.Clone(q.Task.Notes),
		},
	}
	r.Calls = &Calls{events: r.Events, live: x.Live, log: r.Log, metrics: x.Telemetry, counted: x.Telemetry.Calls(), lines: r.Files.New()}
	return r
}

// Secret adds the key of a session, or of an upstream. From now on it is masked in
// all that leaves the rollout.
func (r *Record) Secret(key string) { r.secrets.Add(key) }

// Agent notes the version of the agent.
func (r *Record) Agent(version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.AgentVersion = version
}

// Note adds a sentence for users to the result, such as a limit that is not
// enforced or a part of the task that was not done.
func (r *Record) Note(format string, args ...any) {
	text := schema.Clip(fmt.Sprintf(format, args...), 1000)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.result.Notes) < schema.MaxNotes && !slices.Contains(r.result.Notes, text) {
		r.result.Notes = append(r.result.Notes, text)
	}
}

// Step adds the outcome of a step. The step of a task without steps has no name, and
// its outcome is the rollout's.
func (r *Record) Step(s schema.StepResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.Exit != nil {
		r.result.Exit = s.Exit
	}
	if r.result.Fault == nil {
		r.result.Fault = s.Fault
	}
	r.result.Separation = nearer(r.result.Separation, s.Separation)
	if s.Name == "" {
		r.result.Reward, r.result.Rewards = s.Reward, s.Rewards
		return
	}
	for _, p := range r.result.Phases {
		if strings.HasPrefix(p.Name, "step/"+s.Name+"/") {
			s.Phases = append(s.Phases, p.Name)
		}
	}
	r.result.Steps = append(r.result.Steps, s)
}

// nearer returns the weaker of two separations and ignores an empty one.
func nearer(a, b string) string {
	order := []string{schema.SeparationSameUser, schema.SeparationOtherUser, schema.SeparationSandbox}
	if a == "" || b == "" {
		return cmp.Or(a, b)
	}
	return order[min(slices.Index(order, a), slices.Index(order, b))]
}

// Reward sets the reward of all steps together; nil: not known.
func (r *Record) Reward(headline *float64, all map[string]float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Reward, r.result.Rewards = headline, all
}

// Metrics adds a trainer's metrics of a step.
func (r *Record) Metrics(step string, all map[string]float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, n := range all {
		if r.result.Metrics == nil {
			r.result.Metrics = schema.SortedMap[float64]{}
		}
		if step != "" {
			name = step + "/" + name
		}
		r.result.Metrics[name] = n
	}
}

// Spent notes the model calls of the rollout, and the names of parameters that the
// gate changed.
func (r *Record) Spent(calls map[string]schema.CallStats, committed []schema.Committed, edits []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Calls, r.result.Committed, r.result.Edits = calls, committed, edits
}

// Sandbox adds a sandbox that has existed for a time, with its price in USD per hour; nil: it
// is not known, and so is the sum.
func (r *Record) Sandbox(existed time.Duration, price *float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.result.Usage
	if before == nil {
		before = &schema.ResultUsage{SandboxUSD: new(float64)}
	}
	u := schema.ResultUsage{SandboxSeconds: math.Round(1000*(before.SandboxSeconds+existed.Seconds())) / 1000}
	if price != nil && before.SandboxUSD != nil {
		sum := *before.SandboxUSD + *price*existed.Hours()
		u.SandboxUSD = &sum
	}
	r.result.Usage = &u // a new one: results that were given out keep theirs
}

// Keep stores a file of the rollout. A file without room in the trainer's bucket is
// left out of the result, because another try would fail in the same way.
func (r *Record) Keep(ctx context.Context, name string, content *io.SectionReader) error {
	a, err := r.put(ctx, r.secrets.Text(name), r.secrets.file(content))
	var full *broker.FullError
	if errors.As(err, &full) {
		r.Note("%s was not kept: %v", name, full)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.full = full
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Artifacts = append(r.result.Artifacts, a)
	return nil
}

// KeepFile is Keep for a file of the record, which it closes.
func (r *Record) KeepFile(ctx context.Context, name string, f *spool.File) error {
	defer f.Close()
	content, err := f.Content()
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return r.Keep(ctx, name, content)
}

// KeepTranscript stores the transcript of the calls. If it lacks its last lines, the
// result has a fault, so that a trainer that reads the calls there does not take them
// for complete.
func (r *Record) KeepTranscript(ctx context.Context, p *Phase, t *Transcript) error {
	if t.leftOut > 0 {
		r.mu.Lock()
		r.result.TranscriptTruncated = t.leftOut
		if r.result.Fault == nil {
			r.result.Fault = schema.Faultf("artifacts", schema.CodeTranscript, schema.WhoWorker, "the transcript has no room for its last %d lines: it has more than %d bytes", t.leftOut, MaxFile)
		}
		r.mu.Unlock()
		_, _ = fmt.Fprintf(&p.tail, "the last %d lines of the transcript were not kept: it has more than %d bytes\n", t.leftOut, MaxFile)
	}
	if err := r.KeepFile(ctx, TranscriptName, t.lines); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(r.result.Artifacts, func(a schema.Artifact) bool { return a.Name == TranscriptName }) {
		r.result.Transcript = TranscriptName
	}
	return nil
}

// Fail ends the rollout with a fault. It has no reward then.
func (r *Record) Fail(fault *schema.Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Status, r.result.Fault, r.result.Reward = schema.StatusFailed, fault, nil
}

// Result returns the result so far.
func (r *Record) Result() schema.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.result
	if r.full != nil && out.Fault == nil { // the rollout is done, but not all of its files were stored
		out.Fault = schema.Faultf("artifacts", schema.CodeFull, schema.WhoTrainer, "%v", r.full)
	}
	return Masked(r, out)
}

// Masked returns a value, such as a fault, without the keys of the rollout's sessions.
func Masked[T any](r *Record, v T) T { return hide(r.secrets, v) }
