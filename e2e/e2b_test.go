package e2e_test

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/e2b/e2btest"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

func TestRolloutsAtE2B(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	s := e2btest.Start(t)
	rolloutsAt(t, "e2b", e2btest.Template, s.Env(), s.Key)
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestABrokenStreamOfE2BCostsNothing breaks the stream while an agent works: the agent works on.
// Then E2B ends the sandbox: the rollout runs again in another one.
func TestABrokenStreamOfE2BCostsNothing(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	s := e2btest.Start(t)
	b := newBench(t)
	b.binary = accountOf(t, s.Env(), b.binary)
	b.worker(t, "", "--sandboxes", "e2b", "--e2b", e2btest.Template)
	const sleeper = "70074"
	run := b.run(t, "--agent", "command", "--sandbox", "e2b", filepath.Join(testenv.Root(t), "examples/tasks/hello"),
		"--", "sh", "-c", "sleep "+sleeper+"; echo 'Hello, world!' > hello.txt")
	before := newSleeper(t, "the agent", 5*time.Minute, sleeper, "")
	first := s.Sandboxes()
	if len(first) != 1 {
		t.Fatalf("the sandboxes %+v", first)
	}
	s.Cut(first[0].ID)
	harness.Eventually(t, "another stream", 5*time.Minute, func() bool {
		now := s.Sandboxes()
		return len(now) == 1 && now[0].ID == first[0].ID && len(now[0].Pids) == 2
	})
	signalTo(t, before, 0)
	s.End(first[0].ID)
	agent := newSleeper(t, "the agent of the second attempt", 5*time.Minute, sleeper, before)
	for _, i := range s.Sandboxes() {
		if i.ID == first[0].ID || i.Metadata["turngate_run"] != "2" {
			t.Errorf("there is %+v", i)
		}
	}
	signalTo(t, agent, syscall.SIGTERM)
	if code := run.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	if r := results(t, run)[0]; r.Reward == nil || *r.Reward != 1 || r.Attempt != 2 || r.Fault != nil {
		t.Errorf("got %+v", r)
	}
}
