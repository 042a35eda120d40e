package e2e_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// TestAnAgentCannotBreakItsVerification has agents that damage their sandbox. Each
// causes one execution, and no fault of the worker or of the task.
func TestAnAgentCannotBreakItsVerification(t *testing.T) {
	b := newStepBench(t, "local")
	zero := leaves("true", `{"reward": 0}`)
	separate := "artifacts = ['/opt/x']\n[verifier]\nenvironment_mode = 'separate'\n"
	steps := "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n"
	for i, c := range []struct {
		name, task, agent string
		graded            bool // the verifier's 0 is the reward
	}{
		{"logs is a file", "", "rm -rf /logs; echo x > /logs", true},
		{"logs is a link", "", "rm -rf /logs; ln -s /proc /logs", true},
		{"tests is a link", "", "ln -s /proc /tests", true},
		{"deep logs", "", "cd /logs/verifier; i=0; while [ $i -lt 3000 ]; do mkdir d; cd -P d; i=$((i+1)); done", true},
		{"workdir is a file", "", "rm -rf /workspace; echo x > /workspace", true},
		{"artifact of another type", separate, "mkdir -p /opt/x/logs; ln -s x /opt/y", true},
		{"workdir of the next step", steps, "cd /; rm -rf /workspace; echo x > /workspace", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{"task.toml": c.task, "instruction.md": c.agent, "tests/test.sh": zero}
			if c.task == steps {
				for _, name := range []string{"one", "two"} {
					files["steps/"+name+"/instruction.md"] = c.agent
					files["steps/"+name+"/workdir/given"] = "given"
				}
			}
			res := b.run(t, schema.ID(fmt.Sprintf("local-spoiled-%d", i)), writeTask(t, files), tasks.Options{}, scripted)
			if res.Attempt != 1 || res.Status != schema.StatusDone && res.Status != schema.StatusFailed {
				t.Errorf("attempt %d, %s", res.Attempt, res.Status)
			}
			if res.Fault != nil && res.Fault.Who != schema.WhoAgent {
				t.Errorf("fault %v", res.Fault)
			}
			if c.graded && (res.Reward == nil || *res.Reward != 0) {
				t.Errorf("reward %v, fault %v, notes %q", res.Reward, res.Fault, res.Notes)
			}
		})
	}
}

// TestAnAgentThatUsesUpTheMemory fills a folder in memory until the kernel kills
// the agent or, in docker, the sandbox's own helper.
func TestAnAgentThatUsesUpTheMemory(t *testing.T) {
	for _, sandbox := range []string{"local", "docker"} {
		t.Run(sandbox, func(t *testing.T) {
			image := ""
			if sandbox == "docker" {
				image = testenv.Image(t)
			} else if os.Geteuid() != 0 {
				t.Skip("SKIPPED: a local sandbox has a memory limit only with a writable cgroup")
			}
			b := newStepBench(t, sandbox)
			task := writeTask(t, map[string]string{
				"task.toml": "", "tests/test.sh": leaves("true", `{"reward": 0}`),
				"instruction.md": "while :; do echo 0 > /proc/self/oom_score_adj; head -c 1000000 /dev/zero >> /dev/shm/full || true; done",
			})
			res := b.run(t, schema.ID("local-hungry-"+sandbox), task, tasks.Options{}, func(r *schema.Request) {
				scripted(r)
				r.Sandbox.Backend, r.Sandbox.Image, r.Sandbox.MemoryBytes = sandbox, image, 48<<20
			})
			if res.Attempt != 1 || res.Status != schema.StatusDone || res.Fault == nil || res.Fault.Code != schema.CodeOOM || res.Fault.Who != schema.WhoAgent {
				t.Errorf("attempt %d, %s, fault %v", res.Attempt, res.Status, res.Fault)
			}
		})
	}
}

// TestAnAgentThatRemovesAShell checks that the agent is blamed when the verifier, or
// the agent in the next step, cannot start.
func TestAnAgentThatRemovesAShell(t *testing.T) {
	image := testenv.Image(t)
	b := newStepBench(t, "docker")
	for name, task := range map[string]map[string]string{
		"verifier": {"task.toml": "", "instruction.md": "rm -f /bin/bash /usr/bin/bash", "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"},
		"agent": {
			"task.toml": "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n", "tests/test.sh": "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n",
			"steps/one/instruction.md": "rm -f /bin/sh /usr/bin/sh", "steps/two/instruction.md": "true",
		},
	} {
		t.Run(name, func(t *testing.T) {
			res := b.run(t, schema.ID("local-removes-"+name), writeTask(t, task), tasks.Options{}, func(r *schema.Request) {
				scripted(r)
				r.Sandbox.Backend, r.Sandbox.Image = "docker", image
			})
			fault := res.Fault
			if len(res.Steps) > 0 {
				fault = res.Steps[len(res.Steps)-1].Fault
			}
			if res.Attempt != 1 || fault == nil || fault.Code != schema.CodeSpoiled || fault.Who != schema.WhoAgent {
				t.Errorf("attempt %d, %s, reward %v, fault %v, steps %+v", res.Attempt, res.Status, res.Reward, res.Fault, res.Steps)
			}
			if name == "verifier" && (res.Status != schema.StatusDone || res.Reward != nil) {
				t.Errorf("it ended as %s: %+v", res.Status, res)
			}
		})
	}
}
