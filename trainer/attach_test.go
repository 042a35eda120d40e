package trainer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// config is that of another process of the bench's trainer.
func (b *bench) config(t *testing.T) trainer.Config {
	return trainer.Config{Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", Log: zerolog.Nop()}
}

func (b *bench) submitOne(t *testing.T, id schema.ID) {
	t.Helper()
	harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{harness.Request(id)}))
}

func TestASecondProcessOfAShardIsRefusedOrTakesOver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var used *trainer.InUseError
	if _, err := trainer.Dial(t.Context(), b.config(t)); !errors.As(err, &used) || !strings.Contains(err.Error(), "shard 0 of trainer alpha is in use by trainer.test") && !strings.Contains(err.Error(), "process ") {
		t.Fatalf("got %v", err)
	}
	apart := b.config(t)
	apart.Shard = "other"
	third, err := trainer.Dial(t.Context(), apart)
	if err != nil {
		t.Fatalf("another shard is refused: %v", err)
	}
	defer third.Close()
	over := b.config(t)
	over.TakeOver, over.AnswerAll = true, true
	second, err := trainer.Dial(t.Context(), over)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	var replaced *trainer.ReplacedError
	if _, err := b.trainer.Next(t.Context()); !errors.As(err, &replaced) || !strings.Contains(err.Error(), "was replaced by") {
		t.Fatalf("the first process: %v", err)
	}
	if err := b.trainer.Submit(t.Context(), []schema.Request{harness.Request("alpha-3")}); !errors.As(err, &replaced) {
		t.Fatalf("the first process submits: %v", err)
	}
	if err := b.trainer.Ready(); !errors.As(err, &replaced) {
		t.Errorf("the first process is ready: %v", err)
	}
	if err := second.Ready(); err != nil {
		t.Errorf("the second process: %v", err)
	}
	got := b.ask(t.Context(), 1, 1, nil)
	harness.Must(t, next(t, second).Reply(text("second")))
	said(t, <-got, "second")
}

// TestAProcessThatEndedIsReplacedAtOnce checks that only a process that runs keeps
// its shard.
func TestAProcessThatEndedIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.trainer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	second, err := trainer.Dial(ctx, b.config(t))
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

// TestTheNextProcessOfAStateFileNeedsNoAnswer gives the place of a process that
// hangs to the next one with its file.
func TestTheNextProcessOfAStateFileNeedsNoAnswer(t *testing.T) {
	t.Parallel()
	has := schema.Process{Instance: "a", Owner: "file1", Since: 5}
	for _, c := range []struct {
		name string
		ask  schema.Attach
		gets bool
	}{
		{"itself", schema.Attach{Process: schema.Process{Instance: "a"}}, true},
		{"another one", schema.Attach{Process: schema.Process{Instance: "b"}}, false},
		{"another one with another file", schema.Attach{Process: schema.Process{Instance: "b", Owner: "file2"}}, false},
		{"the next one of the file", schema.Attach{Process: schema.Process{Instance: "b", Owner: "file1", Since: 6}}, true},
		{"an earlier one with a copy of the file", schema.Attach{Process: schema.Process{Instance: "b", Owner: "file1", Since: 4}}, false},
		{"one with a copy of the file from the same time", schema.Attach{Process: schema.Process{Instance: "b", Owner: "file1", Since: 5}}, true},
		{"one that takes over", schema.Attach{Process: schema.Process{Instance: "b"}, Replace: "a"}, true},
		{"one that takes over from another", schema.Attach{Process: schema.Process{Instance: "b"}, Replace: "c"}, false},
	} {
		if got := c.ask.Gets(&has); got != c.gets {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if (&schema.Attach{Process: has}).Gets(&schema.Process{Instance: "b", Owner: "file1", Since: 5}) {
		t.Error("two processes of the same time take turns")
	}
	if (&schema.Attach{Process: schema.Process{Instance: "b"}}).Gets(&schema.Process{Instance: "a"}) {
		t.Error("two processes without a file are one")
	}
}

// forget deletes the record of the process of shard 0.
func (b *bench) forget(t *testing.T) {
	t.Helper()
	nc := b.nats.Raw(t, b.nats.AdminCreds(), "_INBOX.test")
	m, err := nc.Request("$JS.API.STREAM.PURGE."+subjects.StreamControl, []byte(`{"filter":"`+subjects.Process("alpha", "0")+`"}`), 10*time.Second)
	harness.Must(t, err)
	if !strings.Contains(string(m.Data), `"success":true`) {
		t.Fatal(string(m.Data))
	}
}

// TestAProcessKeepsItsShardWithoutARecord: the record is in the server's memory, and
// workers renew nothing while they are away.
func TestAProcessKeepsItsShardWithoutARecord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var used *trainer.InUseError
	for n := range 3 {
		if n == 2 {
			b.leave() // all workers are away
		}
		b.forget(t)
		if second, err := trainer.Dial(t.Context(), b.config(t)); !errors.As(err, &used) || used.Silent != 0 || used.Process.Name == "" {
			t.Errorf("got %v", err)
			if err == nil {
				second.Close()
			}
		}
	}
}

// TestOneThatTakesOverWithoutARecord tells the other process all the same.
func TestOneThatTakesOverWithoutARecord(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.forget(t)
	c := b.config(t)
	c.TakeOver = true
	second, err := trainer.Dial(t.Context(), c)
	harness.Must(t, err)
	defer second.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // less than the time of a renewal
	defer cancel()
	var replaced *trainer.ReplacedError
	if _, err := b.trainer.Next(ctx); !errors.As(err, &replaced) {
		t.Errorf("got %v", err)
	}
}

// TestAReconnectingProcessKeepsItsShard: one that was heard a moment ago is asked again.
func TestAReconnectingProcessKeepsItsShard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other, err := queue.NewTrainer(b.nats.Trainer(t, "alpha"), "alpha")
	harness.Must(t, err)
	_, err = other.Processes.Attach(t.Context(), &schema.Attach{V: 1, Process: schema.Process{V: 1, Instance: "f00d", Shard: "h", Name: "train.py"}})
	harness.Must(t, err)
	back := time.AfterFunc(200*time.Millisecond, func() {
		if _, err := other.Processes.Heard("f00d", func() {}); err != nil {
			t.Error(err)
		}
	})
	defer back.Stop()
	c := b.config(t)
	c.Shard = "h"
	var used *trainer.InUseError
	if second, err := trainer.Dial(t.Context(), c); !errors.As(err, &used) || used.Silent != 0 {
		t.Errorf("got %v", err)
		if err == nil {
			second.Close()
		}
	}
}

// TestACopiedStateFile: one of two processes with it ends, with the reason.
func TestACopiedStateFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := t.TempDir()
	first := b.start(t, func(c *trainer.Config) { c.State = filepath.Join(dir, "a") })
	data, err := os.ReadFile(filepath.Join(dir, "a"))
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(filepath.Join(dir, "b"), data, 0o600))
	c := b.config(t)
	c.State = filepath.Join(dir, "b")
	var used *trainer.InUseError
	if _, err := trainer.Dial(t.Context(), c); !errors.As(err, &used) || !strings.Contains(err.Error(), "has a copy of this process's state file") {
		t.Fatalf("got %v", err)
	}
	c.TakeOver = true
	second, err := trainer.Dial(t.Context(), c)
	harness.Must(t, err)
	defer second.Close()
	var replaced *trainer.ReplacedError
	if _, err := first.Next(t.Context()); !errors.As(err, &replaced) || !strings.Contains(err.Error(), "has a copy of this process's state file") {
		t.Fatalf("got %v", err)
	}
}

// TestAProcessWithoutItsCallsSaysWhy, also if it never gets them.
func TestAProcessWithoutItsCallsSaysWhy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.leave()
	var log harness.Buffer
	c := b.config(t)
	c.Shard, c.Log = "w", zerolog.New(&log).Level(zerolog.WarnLevel)
	second, err := trainer.Dial(t.Context(), c)
	harness.Must(t, err)
	defer second.Close()
	harness.Eventually(t, "a warning", 5*time.Minute, func() bool {
		return strings.Contains(log.String(), "does not have the calls of its shard") && strings.Contains(log.String(), "no worker")
	})
	if err := second.Ready(); err == nil || !strings.Contains(err.Error(), "does not have the calls of shard w of trainer alpha") {
		t.Errorf("it is ready: %v", err)
	}
	if err := b.trainer.Ready(); err != nil { // it had them before
		t.Errorf("the process that has its shard is not ready: %v", err)
	}
}

// TestDialEndsWithItsContext also while it asks for its calls.
func TestDialEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.leave()
	over := errors.New("it took too long")
	ctx, cancel := context.WithCancelCause(t.Context())
	nc := b.nats.Raw(t, b.nats.AdminCreds(), "_INBOX.test")
	asked, err := nc.SubscribeSync(subjects.TrainerAttach("alpha"))
	harness.Must(t, err)
	harness.Must(t, nc.Flush())
	go func() {
		_, err := asked.NextMsg(time.Minute)
		cancel(errors.Join(over, err))
	}()
	c := b.config(t)
	c.Shard = "c"
	if second, err := trainer.Dial(ctx, c); !errors.Is(err, over) {
		t.Errorf("got %v", err)
		if err == nil {
			second.Close()
		}
	}
}

// TestAProcessThatHangsIsNamed: it keeps its shard until a worker takes it for dead.
func TestAProcessThatHangsIsNamed(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.trainer.Close()
	other, err := queue.NewTrainer(b.nats.Trainer(t, "alpha"), "alpha")
	harness.Must(t, err)
	_, err = b.nats.Raw(t, b.nats.TrainerCreds("alpha"), "_INBOX.trainer.alpha").SubscribeSync(subjects.ProcessInbox("alpha", "f00d"))
	harness.Must(t, err)
	_, err = other.Processes.Attach(t.Context(), &schema.Attach{V: 1, Process: schema.Process{V: 1, Instance: "f00d", Shard: "h", Name: "train.py"}})
	harness.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var used *trainer.InUseError
	c := b.config(t)
	c.Shard = "h"
	if _, err := trainer.Dial(ctx, c); !errors.As(err, &used) || used.Silent == 0 || !strings.Contains(err.Error(), "train.py, which was last heard") {
		t.Fatalf("got %v", err)
	}
}

// TestOrphans starts a process after one that died without a file, with rollouts
// that run and that wait.
func TestOrphans(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, orphans := range []trainer.Orphans{"", trainer.LeaveOrphans, trainer.CancelOrphans, trainer.AdoptOrphans} {
		t.Run("orphans "+string(orphans), func(t *testing.T) {
			b := newBench(t)
			for n := range 3 {
				b.submitOne(t, schema.ID(fmt.Sprintf("alpha-%d", n)))
			}
			running, err := b.worker.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			other := harness.Request("alpha-9")
			other.Shard = "other"
			harness.Must(t, b.trainer.Submit(t.Context(), []schema.Request{other}))
			b.trainer.Close()
			c := b.config(t)
			c.Orphans = orphans
			second, err := trainer.Dial(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			defer second.Close()
			mine := harness.Request("alpha-mine")
			harness.Must(t, second.Submit(t.Context(), []schema.Request{mine}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			call := schema.Call{V: 1, Key: string(running.Request.ID) + "/1/1", Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"x"}`)}}
			answered := make(chan answer, 1)
			go func() {
				r, err := testenv.Complete(ctx, b.calls.Caller(running.Request, running), call, func(schema.Frame) error { return nil })
				answered <- answer{r, err}
			}()
			switch orphans {
			case trainer.AdoptOrphans:
				harness.Eventually(t, "four outstanding rollouts", 5*time.Minute, func() bool { return second.Outstanding() == 4 })
				harness.Must(t, next(t, second).Reply(text("adopted")))
				said(t, <-answered, "adopted")
				return
			case trainer.CancelOrphans:
				harness.Eventually(t, "a cancel of the running one", 5*time.Minute, func() bool {
					s, err := b.trainerState(t, running.Request.ID)
					return err == nil && s.Status == schema.StatusCancelling
				})
				harness.Eventually(t, "the end of the waiting ones", 5*time.Minute, func() bool {
					n := 0
					for _, id := range []schema.ID{"alpha-0", "alpha-1", "alpha-2"} {
						if s, err := b.trainerState(t, id); err == nil && s.Status == schema.StatusCancelled {
							n++
						}
					}
					return n == 2
				})
			}
			if n := second.Outstanding(); n != 1 {
				t.Errorf("%d are outstanding", n)
			}
			for _, id := range []schema.ID{"alpha-9", "alpha-mine"} { // another shard's, and its own
				if s, err := b.trainerState(t, id); err == nil {
					t.Errorf("%s is %s", id, s.Status)
				}
			}
			short, stop := context.WithTimeout(t.Context(), 3*time.Second) // in which the worker asks twice
			defer stop()
			if p, err := second.Next(short); err == nil {
				t.Errorf("call %s of another process was handed out", p.Call.Key)
			}
		})
	}
	if _, err := trainer.Dial(t.Context(), trainer.Config{Name: "alpha", Orphans: "x"}); err == nil || !strings.Contains(err.Error(), `orphans: "x"`) {
		t.Errorf("got %v", err)
	}
}

func (b *bench) trainerState(t *testing.T, id schema.ID) (schema.State, error) {
	t.Helper()
	return b.records.State(t.Context(), id)
}
