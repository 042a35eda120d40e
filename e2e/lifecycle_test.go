package e2e_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// slowTask writes a task that takes some time, in a command of the agent and in
// the model's answers.
func slowTask(t *testing.T, seconds, delayMS int) string {
	t.Helper()
	script := fmt.Sprintf("steps:\n- run: sleep %d\n- run: \"echo 'Hello, world!' > hello.txt\"\n  delay_ms: %d\n- text: Done.\n", seconds, delayMS)
	return copyTask(t, "examples/tasks/hello", map[string]string{"replay.yaml": script})
}

// one checks that there is exactly one result, with reward 1 and these numbers of
// the attempt and of calls.
func one(t *testing.T, all []schema.Result, attempt, calls int) schema.Result {
	t.Helper()
	if len(all) != 1 || all[0].Status != schema.StatusDone || all[0].Reward == nil || *all[0].Reward != 1 || all[0].Fault != nil || all[0].Attempt != attempt {
		t.Fatalf("got %+v", all)
	}
	if r := all[0]; r.Calls[schema.TagAgent].Count != calls || len(r.Committed) != calls {
		t.Fatalf("calls %+v, committed %+v", r.Calls, r.Committed)
	}
	return all[0]
}

// TestAnotherWorkerFinishesTheRolloutOfADeadOne kills a worker in the middle of a
// real agent's work in Docker, with the protocol's default durations.
func TestAnotherWorkerFinishesTheRolloutOfADeadOne(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "opencode")
	first := b.worker(t, "", "--sandboxes", "docker")
	run := b.run(t, "--agent", "opencode", "--sandbox", "docker", "--image", testenv.Image(t), slowTask(t, 17, 0))
	harness.Eventually(t, "the agent's command", 5*time.Minute, func() bool { return len(sleepers(t, "17")) > 0 })
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	second := b.worker(t, "", "--sandboxes", "docker")
	harness.Eventually(t, "the take-over", 5*time.Minute, func() bool { return strings.Contains(second.err.String(), "rollout begins") })
	t.Logf("taken over %s after the kill", time.Since(killed).Round(time.Second))
	if code := run.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	r := one(t, results(t, run), 2, 3)
	state, err := b.nats.Ops(t).Records.State(t.Context(), r.ID)
	if err != nil || state.Attempt != 2 || state.Tries != 2 {
		t.Errorf("state %+v, %v", state, err)
	}
	second.stop(t)
	nothingLeft(t, "docker", r.ID)
}

// TestATrainerThatDiesInTheMiddleOfACall restarts the trainer. The agent must see
// nothing but a delay, and read one generation of each call.
func TestATrainerThatDiesInTheMiddleOfACall(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "opencode")
	b.worker(t, "", "--sandboxes", "docker")
	dir := slowTask(t, 1, 8000)
	serve := []string{b.binary, "trainer", "serve", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local"), "--name", "local", "--shard", "0",
		"--trainer", "replay:" + filepath.Join(dir, "replay.yaml")}
	first := start(t, serve...)
	harness.Eventually(t, "a trainer", 5*time.Minute, func() bool { return strings.Contains(first.err.String(), "answering model calls") })
	// The process that submits is another one, and answers no calls.
	submitter, err := trainer.Dial(t.Context(), trainer.Config{Broker: b.nats.Trainer(t, "local"), Name: "local", Shard: "nobody", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	defer submitter.Close()
	task, err := tasks.Load(dir, tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := task.Request
	r.ID, r.Trainer, r.Shard, r.Agent.Name = "local-1", "local", schema.DefaultShard, "opencode"
	r.Sandbox.Backend, r.Sandbox.Image = "docker", testenv.Image(t)
	if r.Task.Bundle, err = submitter.PutBundle(t.Context(), task.Bundle); err != nil {
		t.Fatal(err)
	}
	ops := b.nats.Ops(t)
	if err := submitter.Submit(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	open := waitForCall(t, ops, "local-1", 2) // its answer takes 8 s
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-first.done
	start(t, serve...)
	res, err := submitter.NextResult(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	one(t, []schema.Result{res}, 1, 3)
	if res.Exit == nil || !res.Exit.OK() {
		t.Errorf("the agent ended with %+v", res.Exit)
	}
	seen := map[int]bool{}
	for _, c := range res.Committed {
		if seen[c.Call] {
			t.Errorf("call %d was committed twice", c.Call)
		}
		seen[c.Call] = true
	}
	if took := time.Since(open); took < 8*time.Second {
		t.Errorf("the call was answered after %s: the trainer died too late", took)
	}
}

// waitForCall waits until a call of a rollout has begun.
func waitForCall(t *testing.T, ops *broker.Broker, id schema.ID, number int) time.Time {
	t.Helper()
	tap, err := ops.Events.Tap(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	begun := false
	if err := tap.Run(ctx, func(_ broker.Place, e schema.Event) {
		if e.LLM != nil && e.LLM.Number == number && e.LLM.Call != nil {
			begun = true
			cancel()
		}
	}); err != nil {
		t.Fatal(err)
	}
	if !begun {
		t.Fatalf("call %d did not begin", number)
	}
	return time.Now()
}
