package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// heldTurn is the turn of each agent at which its answer waits until all agents of a
// group have come to it.
const heldTurn = 3

// resident runs a group of n rollouts at once in a `turngate up`, with a bundle of
// about bundleMB once it is unpacked. Of this, at most 32 MB go into each agent's sandbox. It
// returns the memory of the process in bytes: at the start, while all agents wait for a
// call that has a conversation of 32 KB, and the most at any time.
func resident(t testing.TB, binary string, n, bundleMB int) (idle, held, peak int64) {
	t.Helper()
	state := t.TempDir()
	up := start(t, binary, "up", "--state", state, "--port", "0", "--sandboxes", "local", "--slots", fmt.Sprint(n))
	harness.Eventually(t, "a server that is up", 5*time.Minute, func() bool {
		return strings.Contains(up.err.String(), "are ready") && strings.Contains(up.out.String(), "turngate trainer add")
	})
	task, err := tasks.Load(taskOfSize(t, bundleMB), tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := trainer.Dial(t.Context(), trainer.Config{
		URL: regexp.MustCompile(`nats://[0-9.:]+`).FindString(up.out.String()), Creds: filepath.Join(state, "creds", "trainer-local.nk"), Name: "local", AnswerAll: true, Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	bundle, err := tr.PutBundle(t.Context(), task.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	idle = statusOf(t, up.cmd.Process.Pid, "VmRSS")

	var wait sync.WaitGroup // until every agent is at its held turn
	wait.Add(n)
	measured := make(chan struct{})
	filler := strings.Repeat("All work and no play makes Jack a dull boy. ", 240)
	served := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer func() { cancel(); <-served }()
	go func() {
		defer close(served)
		_ = tr.Serve(ctx, trainer.Whole(func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
			turns := strings.Count(joined(c.Messages), `"role":"assistant"`)
			if turns == heldTurn {
				wait.Done()
				select {
				case <-measured:
				case <-ctx.Done():
				}
				return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"Done."}`), FinishReason: "stop"}, nil
			}
			text := fmt.Sprintf(`{"role":"assistant","content":%q,"tool_calls":[{"id":"c%d","type":"function","function":{"name":"bash","arguments":"{\"command\":\"echo %d\"}"}}]}`, filler, turns, turns)
			return &schema.Reply{Message: json.RawMessage(text), FinishReason: "tool_calls"}, nil
		}))
	}()
	group := make([]schema.Request, n)
	for i := range group {
		q := task.Request
		q.ID, q.Trainer, q.Group, q.Index = schema.ID(fmt.Sprintf("local-%d", i)), "local", "g", i
		q.Agent.Name, q.Sandbox.Backend, q.Task.Bundle = "mini", "local", bundle
		group[i] = q
	}
	if err := tr.Submit(ctx, group); err != nil {
		t.Fatal(err)
	}
	wait.Wait()
	held = statusOf(t, up.cmd.Process.Pid, "VmRSS")
	close(measured)
	for range n {
		r, err := tr.NextResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if r.Fault != nil || r.Reward == nil || *r.Reward != 1 {
			t.Errorf("%s: reward %v, %v", r.ID, r.Reward, r.Fault)
		}
	}
	return idle, held, statusOf(t, up.cmd.Process.Pid, "VmHWM")
}

func joined(messages []json.RawMessage) string {
	var b strings.Builder
	for _, m := range messages {
		b.Write(m)
	}
	return b.String()
}

// taskOfSize writes a task with about sizeMB of files, in 32 MB files of which one is for the
// sandbox. Files of zeros are quick to pack.
func taskOfSize(t testing.TB, sizeMB int) string {
	t.Helper()
	dir := writeTask(t, map[string]string{
		"instruction.md":     "x",
		"task.toml":          "[agent]\ntimeout_sec = 300\n",
		"environment/README": "The data is in data.\n",
		"solution/solve.sh":  "#!/bin/sh\n",
		"tests/test.sh":      "#!/bin/sh\ntest \"$(cat data* | wc -c)\" = " + fmt.Sprint(min(sizeMB, 32)<<20) + " && echo 1 > /logs/verifier/reward.txt\n",
	})
	at := "environment/data"
	for i := range sizeMB / 32 {
		f, err := os.Create(filepath.Join(dir, at))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(32 << 20); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		at = fmt.Sprintf("solution/data-%d", i)
	}
	return dir
}

// TestALargeBundleCostsAWorkerNoMemory checks with eight rollouts at once that their
// bundle of 1 GB is not in the memory of the worker.
func TestALargeBundleCostsAWorkerNoMemory(t *testing.T) {
	testenv.Slow(t)
	(&bench{cache: agentCache()}).need(t, "local", "mini")
	idle, held, peak := resident(t, testenv.Binary(t), 8, 1024)
	t.Logf("resident: %d MB at the start, %d MB with eight agents, at most %d MB", idle>>20, held>>20, peak>>20)
	if peak > 200e6 {
		t.Errorf("the worker took %d MB, want at most 200", peak/1e6)
	}
}

// leaver is an agent that leaves a file and a folder of 16 MB each, and prints 2 MB.
// Files that differ are stored apart.
const leaver = `
cd /logs/artifacts && mkdir a && { echo "$RANDOM$RANDOM$RANDOM"; head -c 16000000 /dev/zero; } | tee a/large > /tmp/large.bin
head -c 2000000 /dev/zero | tr '\\0' x
`

// TestLargeArtifactsCostAWorkerNoMemory checks with eight rollouts at once that the worker
// has neither their artifacts nor their logs in its memory, and no files of them at the end. A
// separate verifier gets the artifacts, too.
func TestLargeArtifactsCostAWorkerNoMemory(t *testing.T) {
	testenv.Slow(t)
	b := newBench(t)
	const rollouts = 8
	state := filepath.Join(t.TempDir(), "worker")
	w := b.worker(t, "", "--state", state, "--sandboxes", "local", "--slots", fmt.Sprint(rollouts))
	tr := newTrainer(t, b, "")
	q := schema.Request{
		Trainer: "local", Task: schema.Task{Name: "t", Instruction: "x"}, Agent: schema.AgentChoice{Name: "command", Args: []string{"/bin/bash", "-c", leaver}},
		Sandbox: schema.SandboxChoice{Backend: "local"}, Artifacts: []schema.ArtifactRule{{Source: "/tmp/large.bin", Destination: "large.bin"}},
		Verify: &schema.Verify{Run: `cmp /tmp/large.bin /logs/artifacts/a/large && echo 1 > /logs/verifier/reward.txt`, Separate: &schema.SandboxChoice{Backend: "local"}},
	}
	group := make([]schema.Request, rollouts)
	for i := range group {
		group[i] = q
		group[i].ID = schema.ID(fmt.Sprintf("local-%d", i))
	}
	before := residentPeak(t, w.cmd.Process.Pid)
	if err := tr.Submit(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for range group {
		r, err := tr.NextResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		sizes := map[string]int64{}
		for _, a := range r.Artifacts {
			sizes[a.Name] = a.Size
		}
		if r.Reward == nil || *r.Reward != 1 || r.Fault != nil || sizes["large.bin"] < 16e6 || sizes["logs/artifacts.tar"] < 16e6 || sizes["agent.stdout.log"] != 2e6 {
			t.Errorf("%s: reward %v, %v, artifacts %v, notes %q", r.ID, r.Reward, r.Fault, sizes, r.Notes)
		}
	}
	peak := residentPeak(t, w.cmd.Process.Pid)
	t.Logf("resident: %d MB before, at most %d MB", before>>20, peak>>20)
	if peak > 300e6 { // eight rollouts have about 400 MB of artifacts and logs
		t.Errorf("the worker took %d MB, want at most 300", peak/1e6)
	}
	if left, err := os.ReadDir(filepath.Join(state, "spool")); err != nil || len(left) != 0 {
		t.Errorf("the worker left %v, %v", left, err)
	}
}

// BenchmarkResident prints the memory of a `turngate up` with sixteen agents at once,
// without and with large files of their task.
func BenchmarkResident(b *testing.B) {
	(&bench{cache: agentCache()}).need(b, "local", "mini")
	const agents = 16
	for _, sizeMB := range []int{0, 1024} {
		b.Run(fmt.Sprintf("bundle-%dMB", sizeMB), func(b *testing.B) {
			for b.Loop() {
				idle, held, peak := resident(b, testenv.Binary(b), agents, sizeMB)
				b.ReportMetric(float64(idle)/1e6, "idle-MB")
				b.ReportMetric(float64(held)/1e6, "held-MB")
				b.ReportMetric(float64(peak)/1e6, "peak-MB")
				b.ReportMetric(float64(held-idle)/1e6/agents, "MB/rollout")
			}
		})
	}
}
