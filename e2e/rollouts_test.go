package e2e_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// rollout runs a command of `turngate rollout` with the trainer's credential.
func (b *bench) rollout(t *testing.T, want int, args ...string) (out, errOut string) {
	t.Helper()
	at := append([]string{b.binary, "rollout", args[0], "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local")}, args[1:]...)
	p := start(t, at...)
	if code := p.wait(t, 10*time.Minute); code != want {
		t.Fatalf("%q: exit status %d\n%s\n%s", args, code, p.out, p.err)
	}
	return p.out.String(), p.err.String()
}

// TestRolloutsOfATrainer reads a rollout of a running system with each command, with
// the trainer's credential alone: while it waits, after it has ended, and again.
func TestRolloutsOfATrainer(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	dir := copyTask(t, "examples/tasks/hello", nil)
	engine := httptest.NewServer(helloEngine(t))
	t.Cleanup(engine.Close)
	run := b.run(t, "--agent", "mini", "--sandbox", "local", "--system-prompt", "Be brief.", "--trainer", "upstream:"+engine.URL, dir)
	var id string
	harness.Eventually(t, "a request that waits", 5*time.Minute, func() bool {
		out, _ := b.rollout(t, 0, "ls")
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 4 && f[4] == "queued" {
				id = f[0]
			}
		}
		return id != ""
	})
	var state schema.State
	if out, _ := b.rollout(t, 0, "get", id); json.Unmarshal([]byte(out), &state) != nil || state.Status != schema.StatusQueued || string(state.ID) != id {
		t.Errorf("get: %s", out)
	}
	if out, _ := b.rollout(t, 0, "show", id); !strings.Contains(out, "no transcript") {
		t.Errorf("show: %s", out)
	}
	b.worker(t, dir, "--sandboxes", "local")
	if code := run.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d: %s", code, run.err)
	}
	b.readRollout(t, id)
	if err := os.RemoveAll(dir); err != nil { // the stored request has all that a replay needs
		t.Fatal(err)
	}
	if out, _ := b.rollout(t, 0, "replay", id); out != "the agent made the same 2 calls\n" {
		t.Errorf("replay: %s", out)
	}
	if out, _ := b.rollout(t, 1, "replay", id, "--", "--system-prompt", "Be verbose."); !strings.Contains(out, "call 1 diverges from recorded call 1 at message 0") || !strings.Contains(out, "Be verbose.") {
		t.Errorf("replay: %s", out)
	}
}

// readRollout reads a rollout of the task hello that has ended.
func (b *bench) readRollout(t *testing.T, id string) {
	t.Helper()
	if out, _ := b.rollout(t, 0, "ls"); !strings.Contains(out, id) || !strings.Contains(out, "done") || strings.Contains(out, "queued") {
		t.Errorf("ls: %s", out)
	}
	var result schema.Result
	if out, _ := b.rollout(t, 0, "get", id); json.Unmarshal([]byte(out), &result) != nil || result.Reward == nil || *result.Reward != 1 {
		t.Errorf("get: %s", out)
	}
	if out, _ := b.rollout(t, 0, "show", id); !strings.Contains(out, "assistant calls bash") || !strings.Contains(out, "call 2") || !strings.Contains(out, "reward 1") {
		t.Errorf("show: %s", out)
	}
	if out, stderr := b.rollout(t, 0, "export", "--merge", "fork", "--format", "jsonl", id); strings.Count(out, `"input_ids":[1,2,1]`) != 2 || !strings.Contains(stderr, "2 rows of 6 tokens\n2 of 2 sampled tokens trained (100 %)") {
		t.Errorf("export: %s\n%s", out, stderr)
	}
	if out, _ := b.rollout(t, 0, "export", "--format", "atif", id); !strings.Contains(out, `"schema_version":"ATIF-v1.8"`) || !strings.Contains(out, id) {
		t.Errorf("export: %s", out)
	}
	log, _ := b.rollout(t, 0, "logs", id)
	if stderr, _ := b.rollout(t, 0, "logs", "--stderr", id); !strings.Contains(log, "hello.txt") || stderr != "" {
		t.Errorf("logs: %s, %s", log, stderr)
	}
	to := t.TempDir()
	if out, _ := b.rollout(t, 0, "cp", id, "agent.stdout.log", "*.zst", to); !strings.Contains(out, "transcript.jsonl.zst\n") {
		t.Errorf("cp: %s", out)
	}
	if data, err := os.ReadFile(filepath.Join(to, "agent.stdout.log")); err != nil || string(data) != log {
		t.Errorf("cp: got %q, %v, want %q", data, err, log)
	}
}

// TestReplayWithoutATaskDirectory replays a rollout of which there is a request alone:
// it has no bundle, and its trainer verified it.
func TestReplayWithoutATaskDirectory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", "local")
	tr := b.verifier(t, func(context.Context, *trainer.Handle) (*schema.Verdict, error) {
		reward := 0.5
		return &schema.Verdict{V: schema.Version, Reward: &reward}, nil
	})
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = tr.Serve(context.WithoutCancel(t.Context()), trainer.Whole(func(context.Context, *schema.Call) (*schema.Reply, error) {
			return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"Done."}`), FinishReason: "stop"}, nil
		}))
	}()
	t.Cleanup(func() { tr.Close(); <-served })
	r := verifying(t, "local", "local-alone", "")
	r.Agent = schema.AgentChoice{Name: "mini"}
	if err := tr.Submit(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	if res := nextResult(t, tr); res.Reward == nil || *res.Reward != 0.5 {
		t.Fatalf("got %+v", res)
	}
	out, stderr := b.rollout(t, 0, "replay", "local-alone")
	if out != "the agent made the same 1 call\n" || !strings.Contains(stderr, "without verification") {
		t.Errorf("replay: %s\n%s", out, stderr)
	}
}

// TestRolloutsOfAllTrainers: an operator lists the rollouts of each trainer, or of one,
// also after they have ended.
func TestRolloutsOfAllTrainers(t *testing.T) {
	t.Parallel()
	b := &bench{nats: testenv.StartNATS(t, "local", "other"), binary: testenv.Binary(t), cache: agentCache(), workers: map[string]string{}}
	b.worker(t, "", "--sandboxes", "local")
	task := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	ids := map[string]string{}
	for _, tid := range []string{"local", "other"} {
		p := start(t, b.binary, "run", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds(tid), "--name", tid, "-o", "json", task)
		if code := p.wait(t, 10*time.Minute); code != 0 {
			t.Fatalf("exit status %d: %s", code, p.err)
		}
		ids[tid] = string(results(t, p)[0].ID)
	}
	ls := func(want int, args ...string) string {
		t.Helper()
		p := start(t, append([]string{b.binary, "rollout", "ls", "--nats", b.nats.URL(), "--creds", b.nats.OpsCreds()}, args...)...)
		if code := p.wait(t, 10*time.Minute); code != want {
			t.Fatalf("%q: exit status %d: %s%s", args, code, p.out, p.err)
		}
		return p.out.String() + p.err.String()
	}
	if all := ls(0); !strings.Contains(all, ids["local"]) || !strings.Contains(all, ids["other"]) || !regexp.MustCompile(`(?m)^local +1 +1 +1 +2 .*\nother +1 +1 +1 +2 `).MatchString(all) {
		t.Errorf("all trainers: %s", all)
	}
	if one := ls(0, "--trainer", "other"); strings.Contains(one, ids["local"]) || !strings.Contains(one, ids["other"]) {
		t.Errorf("one trainer: %s", one)
	}
	if text := ls(2, "--before", "7"); !strings.Contains(text, "--before: want --trainer, too") {
		t.Errorf("got %s", text)
	}
}
