package e2e_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestAgentsInABareImage runs each agent in an image without ps, git, ripgrep
// and CA certificates. Every reward counts.
func TestAgentsInABareImage(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "mini")
	image := testenv.BareImage(t, "ps", "git", "rg")
	b.worker(t, "", "--sandboxes", "docker", "--slots", "4")
	task := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	for _, s := range agents.All() {
		if s.Dialect == "" || s.AnyProgram {
			continue
		}
		n := 1
		if s.Name == "droid" {
			n = 6 // without ps it gave no reward in about half of its rollouts
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			b.need(t, "docker", s.Name)
			p := b.run(t, "--agent", s.Name, "--sandbox", "docker", "--image", image, "-n", strconv.Itoa(n), task)
			if code := p.wait(t, 10*time.Minute); code != 0 {
				t.Errorf("exit status %d", code)
			}
			all := results(t, p)
			if len(all) != n {
				t.Errorf("%d results", len(all))
			}
			for _, r := range all {
				if r.Reward == nil || *r.Reward != 1 || r.Fault != nil {
					t.Errorf("rollout %s: reward %v, fault %v", r.ID, r.Reward, r.Fault)
				}
			}
		})
	}
}

// TestASearchToolFindsItsProgram lets agents use their own search tool, which
// starts ripgrep, in an image without ripgrep.
func TestASearchToolFindsItsProgram(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "mini")
	image := testenv.BareImage(t, "ps", "git", "rg")
	b.worker(t, "", "--sandboxes", "docker", "--slots", "4")
	for agent, tool := range map[string]string{"opencode": "grep", "kilo": "grep", "kimi": "Grep"} {
		t.Run(agent, func(t *testing.T) {
			t.Parallel()
			b.need(t, "docker", agent)
			script := "steps:\n- run: \"echo 'Hello, world!' > hello.txt\"\n- tools:\n  - {name: " + tool + ", args: {pattern: 'w[o]rld'}}\n- text: Done.\n"
			task := copyTask(t, "examples/tasks/hello", map[string]string{"replay.yaml": script})
			tap := b.tap(t)
			p := b.run(t, "--agent", agent, "--sandbox", "docker", "--image", image, task)
			if code := p.wait(t, 10*time.Minute); code != 0 {
				t.Fatalf("exit status %d", code)
			}
			harness.Eventually(t, "the result in the tap", 5*time.Minute, func() bool { return strings.Contains(tap.out.String(), `"type":"result"`) })
			if found := lastToolMessage(t, tap.out.String()); !strings.Contains(found, "hello.txt") || strings.Contains(found, "ripgrep") {
				t.Errorf("its search gave %s", found)
			}
		})
	}
}

// lastToolMessage returns the last tool result in a model call.
func lastToolMessage(t *testing.T, jsonl string) (found string) {
	t.Helper()
	for line := range strings.Lines(jsonl) {
		var e schema.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if e.LLM == nil || e.LLM.Call == nil {
			continue
		}
		for _, m := range e.LLM.Call.Messages {
			if strings.Contains(string(m), `"role":"tool"`) {
				found = string(m)
			}
		}
	}
	return found
}

// TestAMissingProgramIsNamed checks that the fault names a shell that an agent
// needs and the image lacks.
func TestAMissingProgramIsNamed(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	r := withoutPart(t, "claude-code", "turngate-test-nobash:1", "/bin/bash /usr/bin/bash")
	if r.Fault == nil || r.Fault.Code != schema.CodeMissing || !strings.Contains(r.Fault.Message, "bash") || len(r.Calls) != 0 {
		t.Fatalf("got %+v", r)
	}
}

// TestImageWithoutGlibc checks that the fault names the missing library if an
// agent needs it.
func TestImageWithoutGlibc(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	f := withoutPart(t, "pi", "turngate-test-empty:1", "/lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1").Fault
	if f == nil || f.Code != schema.CodeMissing || !strings.Contains(f.Message, "GNU C library") {
		t.Fatalf("got %+v", f)
	}
}

// withoutPart runs an agent in an image without some files, and returns the result.
func withoutPart(t *testing.T, agent, image, files string) schema.Result {
	t.Helper()
	b := newBench(t)
	b.need(t, "docker", agent)
	build := exec.Command("docker", "build", "-q", "-t", image, "-")
	build.Env = append(build.Environ(), "DOCKER_BUILDKIT=0")
	build.Stdin = strings.NewReader("FROM " + testenv.Image(t) + "\nRUN rm -f " + files + "\n")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.worker(t, "", "--sandboxes", "docker")
	p := b.run(t, "--agent", agent, "--sandbox", "docker", "--image", image, filepath.Join(testenv.Root(t), "examples/tasks/hello"))
	if code := p.wait(t, 10*time.Minute); code != 1 {
		t.Fatalf("exit status %d", code)
	}
	return results(t, p)[0]
}
