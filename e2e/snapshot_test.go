package e2e_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestAGroupBeginsWithOneSetup: the rollouts of a group in Docker read the random
// number that one setup wrote, and find its users, modes and links.
func TestAGroupBeginsWithOneSetup(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t)
	b.need(t, "docker", "mini")
	task := writeTask(t, map[string]string{
		"instruction.md": "x",
		"replay.yaml":    "steps:\n- run: \"! grep -lqz '^sleep$' /proc/[0-9]*/cmdline && echo mine >> /opt/made/log\"\n- text: Done.\n",
		"task.toml": `
[turngate]
snapshot = true
setup = ["mkdir /opt/made && od -An -N4 -tu4 /dev/urandom | tr -d ' ' > /opt/made/number", "useradd -m maker && chown -h maker /opt/made && chmod 750 /opt/made && ln -s number /opt/made/link && (sleep 1000 &)"]
`,
		"tests/test.sh": `#!/bin/bash
set -e
[ "$(stat -c '%U %a' /opt/made)" = "maker 750" ]
[ "$(cat /opt/made/log)" = mine ]
cat /opt/made/link > /logs/verifier/reward.txt
`,
	})
	image := testenv.Image(t)
	worker := b.worker(t, filepath.Dir(task), "--sandboxes", "docker", "--slots", "3")
	run := b.run(t, "-n", "6", "--agent", "mini", "--sandbox", "docker", "--image", image, task)
	if code := run.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("exit status %d", code)
	}
	all := results(t, run)
	if len(all) != 6 {
		t.Fatalf("got %d results", len(all))
	}
	maker, setups := schema.ID(""), 0
	for _, r := range all {
		if r.Reward == nil || all[0].Reward == nil || *r.Reward != *all[0].Reward || len(r.Notes) > 1 {
			t.Errorf("%s: reward %v, %v, notes %q", r.ID, r.Reward, r.Fault, r.Notes)
		}
		if slices.ContainsFunc(r.Phases, func(p schema.Phase) bool { return p.Name == "setup[0]" }) {
			maker = r.ID
			setups++
		}
	}
	if setups != 1 {
		t.Errorf("%d setups ran", setups)
	}
	worker.stop(t)
	out, err := exec.Command("docker", "images", "--filter", "label=turngate.rollout="+string(maker), "-q").Output()
	if err != nil || strings.TrimSpace(string(out)) != "" {
		t.Errorf("images are left: %s %v", out, err)
	}
}
