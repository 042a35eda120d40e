package e2e_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// TestAnAgentCannotBreakItsVerification has agents that damage their sandbox. Each
// causes one execution that ends as done, and no fault of the worker or of the
// task.
func TestAnAgentCannotBreakItsVerification(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, sandbox := range []string{"local", "docker"} {
		t.Run(sandbox, func(t *testing.T) {
			image := ""
			if sandbox == "docker" {
				image = testenv.Image(t)
			}
			b := newStepBench(t, sandbox)
			for i, c := range spoilers(sandbox) {
				t.Run(c.name, func(t *testing.T) {
					id := schema.ID(fmt.Sprintf("local-spoiled-%s-%d", sandbox, i))
					c.check(t, b.run(t, id, writeTask(t, c.files()), tasks.Options{}, func(r *schema.Request) {
						scripted(r)
						r.Sandbox.Backend, r.Sandbox.Image = sandbox, image
					}))
				})
			}
		})
	}
}

// spoiler is an agent that damages its sandbox.
type spoiler struct {
	name, task, agent string
	faults            []string // codes of the agent's fault; "": none
	graded            bool     // the verifier's 0 is the reward
}

// deep makes 40,001 folders inside each other. It moves them into a chain of 1,000
// new ones, 40 times, because a shell is slow in a deep folder.
const deep = `cd /logs/verifier; p=n; i=1; while [ $i -lt 1000 ]; do p=$p/d; i=$((i+1)); done
mkdir d; i=0; while [ $i -lt 40 ]; do mkdir -p $p; mv d $p; mv n d; i=$((i+1)); done`

const twoSteps = "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n"

func spoilers(sandbox string) []spoiler {
	separate := "artifacts = ['/opt/x']\n[verifier]\nenvironment_mode = 'separate'\n"
	none, deepFaults := []string{""}, []string{""}
	if sandbox == "docker" { // where the disk is watched, and looked at before the agent ends
		deepFaults = []string{"", schema.CodeDisk}
	}
	return []spoiler{
		{"logs is a file", "", "rm -rf /logs; echo x > /logs", none, true},
		{"logs is a link", "", "rm -rf /logs; ln -s /proc /logs", none, true},
		{"tests is a link", "", "ln -s /proc /tests", none, true},
		{"deep logs", "", deep, deepFaults, true},
		{"workdir is a file", "", "rm -rf /workspace; echo x > /workspace", none, true},
		{"artifact of another type", separate, "mkdir -p /opt/x/logs; ln -s x /opt/y", none, true},
		{"workdir of the next step", twoSteps, "cd /; rm -rf /workspace; echo x > /workspace", []string{schema.CodeSpoiled}, false},
	}
}

func (c spoiler) files() map[string]string {
	files := map[string]string{"task.toml": c.task, "instruction.md": c.agent, "tests/test.sh": leaves("true", `{"reward": 0}`)}
	if c.task == twoSteps {
		for _, name := range []string{"one", "two"} {
			files["steps/"+name+"/instruction.md"] = c.agent
			files["steps/"+name+"/workdir/given"] = "given"
		}
	}
	return files
}

func (c spoiler) check(t *testing.T, res schema.Result) {
	t.Helper()
	if res.Attempt != 1 || res.Status != schema.StatusDone {
		t.Errorf("attempt %d, %s", res.Attempt, res.Status)
	}
	fault := res.Fault
	if n := len(res.Steps); fault == nil && n > 0 {
		fault = res.Steps[n-1].Fault
	}
	code := ""
	if fault != nil {
		code = fault.Code
	}
	if !slices.Contains(c.faults, code) || fault != nil && fault.Who != schema.WhoAgent {
		t.Errorf("fault %v, want one of %q of the agent", fault, c.faults)
	}
	if c.graded && (res.Reward == nil || *res.Reward != 0) {
		t.Errorf("reward %v, fault %v, notes %q", res.Reward, res.Fault, res.Notes)
	}
}

// TestAnAgentThatUsesUpTheMemory fills a folder in memory until the kernel kills
// the agent or, in docker, the sandbox's own helper.
func TestAnAgentThatUsesUpTheMemory(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
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
	testenv.Slow(t)
	t.Parallel()
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
