package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// badTimes is a trainer that makes every agent wait 90 s for its first token,
// fails each second call once, and leaves each third one to its successor.
type badTimes struct {
	script *replay.Script

	mu       sync.Mutex
	asked    map[string]int // generations begun, by call
	left     int            // third calls that wait for a successor
	succeeds bool           // this trainer is the successor
}

func (b *badTimes) answer(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
	turn := 0
	for _, m := range c.Messages {
		var one struct{ Role string }
		if json.Unmarshal(m, &one) == nil && one.Role == "assistant" {
			turn++
		}
	}
	b.mu.Lock()
	b.asked[c.Key]++
	n, succeeds := b.asked[c.Key], b.succeeds
	if turn == 2 && !succeeds {
		b.left++
	}
	b.mu.Unlock()
	switch {
	case turn == 0:
		select {
		case <-time.After(90 * time.Second):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	case turn == 1 && n == 1:
		return nil, &schema.Fault{Code: "engine", Message: "the engine fell over", Status: 500, Retryable: true, RetryAfterMS: 500}
	case turn == 2 && !succeeds:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return b.script.Answer(ctx, c)
}

// TestEveryAgentThroughBadTimes runs every agent in Docker at the same time. Each
// waits 90 s for a first token, meets an error of the engine, and loses its
// trainer in the middle of a call. The agent must see nothing but delays.
func TestEveryAgentThroughBadTimes(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	names := b.everyAgent(t, "docker")
	b.worker(t, "", "--sandboxes", "docker", "--slots", fmt.Sprint(len(names)))
	task, err := tasks.Load(copyTask(t, "examples/tasks/hello", nil), tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	script, err := replay.Parse([]byte("steps:\n- {run: pwd, reasoning: Where am I?}\n- run: \"echo 'Hello, world!' > hello.txt\"\n- text: Done.\n"))
	if err != nil {
		t.Fatal(err)
	}
	submitter := newTrainer(t, b, "nobody")
	bundle, err := submitter.PutBundle(t.Context(), task.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	model := &badTimes{script: script, asked: map[string]int{}}
	stopFirst := serveWith(t, b, model.answer)
	var all []schema.Request
	for _, name := range names {
		r := task.Request
		r.ID, r.Trainer, r.Agent.Name, r.Task.Bundle = schema.ID("local-"+name), "local", name, bundle
		r.Sandbox.Backend, r.Sandbox.Image = "docker", testenv.Image(t)
		r.Limits.AgentMS = 600_000 // the first ones wait for the last
		all = append(all, r)
	}
	if err := submitter.Submit(t.Context(), inDefaultShard(all)); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "every agent's third call", 10*time.Minute, func() bool {
		model.mu.Lock()
		defer model.mu.Unlock()
		return model.left == len(names)
	})
	stopFirst()
	model.mu.Lock()
	model.succeeds = true
	model.mu.Unlock()
	defer serveWith(t, b, model.answer)()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for range names {
		r, err := submitter.NextResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(r.Agent, func(t *testing.T) {
			said := artifact(t, submitter, r, "agent.stdout.log")
			defer func() {
				if t.Failed() {
					t.Logf("it said: %s", said)
				}
			}()
			one(t, []schema.Result{r}, 1, 3)
			if r.Exit == nil || !r.Exit.OK() {
				t.Errorf("it ended with %+v", r.Exit)
			}
			if n := r.Calls[schema.TagAux].Count + r.Calls[schema.TagSubagent].Count; n != 0 {
				t.Errorf("%d calls beside its turns: %+v", n, r.Calls)
			}
		})
	}
	model.mu.Lock()
	defer model.mu.Unlock()
	for key, n := range model.asked {
		if want := map[bool]int{true: 1, false: 2}[strings.HasSuffix(key, "/1")]; n != want {
			t.Errorf("call %s was begun %d times, want %d", key, n, want)
		}
	}
}

// artifact is a file of a result; empty if there is none.
func artifact(t *testing.T, tr *trainer.Trainer, r schema.Result, name string) string {
	t.Helper()
	for _, a := range r.Artifacts {
		if a.Name == name {
			data, err := tr.Artifact(t.Context(), a)
			if err != nil {
				t.Error(err)
			}
			return string(data)
		}
	}
	return ""
}

// inDefaultShard sends the calls of requests to the default shard, from whichever
// process they come.
func inDefaultShard(all []schema.Request) []schema.Request {
	for i := range all {
		all[i].Shard = schema.DefaultShard
	}
	return all
}

func newTrainer(t *testing.T, b *bench, shard string, change ...func(*trainer.Config)) *trainer.Trainer {
	t.Helper()
	c := trainer.Config{Broker: b.nats.Trainer(t, "local"), Name: "local", Shard: shard, AnswerAll: true, Log: zerolog.Nop()}
	for _, f := range change {
		f(&c)
	}
	tr, err := trainer.Dial(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

// serveWith answers calls until stop, which ends the trainer abruptly as a crash
// does.
func serveWith(t *testing.T, b *bench, answer func(context.Context, *schema.Call) (*schema.Reply, error)) (stop func()) {
	t.Helper()
	tr := newTrainer(t, b, "0")
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = tr.Serve(context.WithoutCancel(t.Context()), trainer.Whole(answer))
	}()
	return func() {
		tr.Close()
		<-served
	}
}
