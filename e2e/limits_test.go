package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// TestAFullDiskIsTheAgentsFault fills the disk of a local sandbox, with one file
// and with many. There is one execution; the verifier may still give a reward.
func TestAFullDiskIsTheAgentsFault(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newStepBench(t, "local")
	for i, c := range []struct{ agent, fault string }{
		{"head -c 200M /dev/zero > /workspace/large", schema.CodeExit},
		{"head -c 200M /dev/zero > /workspace/large || true", schema.CodeDisk},
		{"cd /workspace; i=0; while head -c 4M /dev/zero > $i; do i=$((i+1)); done", schema.CodeDisk},
	} {
		dir := writeTask(t, map[string]string{
			"task.toml": "[environment]\nstorage_mb = 64\n", "instruction.md": c.agent, "tests/test.sh": leaves("test -e /workspace", `{"reward": 0}`),
		})
		res := b.run(t, schema.ID(fmt.Sprintf("local-full-%d", i)), dir, tasks.Options{}, scripted)
		if res.Attempt != 1 || res.Status != schema.StatusDone {
			t.Errorf("%s: attempt %d, %s", c.agent, res.Attempt, res.Status)
		}
		if res.Fault == nil || res.Fault.Who != schema.WhoAgent || res.Fault.Code != c.fault {
			t.Errorf("%s: fault %v, reward %v", c.agent, res.Fault, res.Reward)
		}
		if res.Reward != nil && *res.Reward != 0 {
			t.Errorf("%s: reward %v", c.agent, *res.Reward)
		}
	}
}

// TestAWatchedDiskIsTheAgentsFault fills the disk of a container. The verifier
// still runs, the result has a note where the engine cannot limit a container's
// disk, and a strict limit is refused there instead.
func TestAWatchedDiskIsTheAgentsFault(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	image := testenv.Image(t)
	b := newStepBench(t, "docker")
	dir := writeTask(t, map[string]string{
		"task.toml": "[environment]\nstorage_mb = 64\n", "instruction.md": "head -c 200M /dev/zero > /workspace/large; sleep 300",
		"tests/test.sh": leaves("rm /workspace/large", `{"reward": 0.5}`),
	})
	in := func(r *schema.Request) {
		scripted(r)
		r.Sandbox.Backend, r.Sandbox.Image = "docker", image
	}
	res := b.run(t, "local-watched", dir, tasks.Options{}, in)
	if res.Attempt != 1 || res.Status != schema.StatusDone || res.Reward == nil || *res.Reward != 0.5 {
		t.Errorf("attempt %d, %s, reward %v", res.Attempt, res.Status, res.Reward)
	}
	if f := res.Fault; f == nil || f.Who != schema.WhoAgent || f.Code != schema.CodeDisk {
		t.Errorf("fault %+v", f)
	}
	noted := slices.ContainsFunc(res.Notes, func(note string) bool {
		return strings.HasPrefix(note, "sandbox.disk_bytes: 67108864 is not enforced")
	})
	strict := b.run(t, "local-strict", dir, tasks.Options{}, func(r *schema.Request) {
		in(r)
		r.Sandbox.Strict = []string{schema.LimitDisk}
	})
	if refused := strict.Status == schema.StatusFailed && strict.Fault != nil && strict.Fault.Code == schema.CodeUnsupported; refused != noted {
		t.Errorf("with the notes %q, the strict limit ends as %s: %+v", res.Notes, strict.Status, strict.Fault)
	}
}

// TestABuildOverItsTimeLimitIsNamed checks that the rollout fails once, that the
// fault names the build, and that the build has ended.
func TestABuildOverItsTimeLimitIsNamed(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	image := testenv.Image(t)
	b := newStepBench(t, "docker")
	marker := time.Now().Format(time.RFC3339Nano)
	dir := writeTask(t, map[string]string{
		"task.toml": "[environment]\nbuild_timeout_sec = 2\n", "instruction.md": "x", "tests/test.sh": leaves("true", `{"reward": 1}`),
		"environment/Dockerfile": "FROM " + image + "\nRUN echo begun; sleep 600 # " + marker + "\n",
	})
	began := time.Now()
	res := b.run(t, "local-slow-build", dir, tasks.Options{}, func(r *schema.Request) {
		r.Agent.Name, r.Sandbox.Backend, r.Limits.ReadyMS = "nop", "docker", 1000
	})
	if res.Attempt != 1 || res.Status != schema.StatusFailed || res.Reward != nil {
		t.Errorf("attempt %d, %s, reward %v", res.Attempt, res.Status, res.Reward)
	}
	if f := res.Fault; f == nil || f.Who != schema.WhoTask || f.Code != schema.CodeTimeout || !strings.Contains(f.Message, "the image was not built within 2000 ms") {
		t.Errorf("fault %+v", f)
	}
	if took := time.Since(began); took > 5*time.Minute {
		t.Errorf("the rollout took %s", took)
	}
}
