package e2e_test

import (
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// effect is a task and the end of its rollout.
type effect struct {
	files  map[string]string
	agent  string   // default nop
	reward *float64 // nil: null
	fault  string   // code
	notes  []string // texts, each in the note of the same index
}

// checkEffects runs the tasks, each in a local sandbox.
func checkEffects(t *testing.T, all map[string]effect) {
	t.Helper()
	b := newBench(t)
	b.worker(t, "", "--sandboxes", "local")
	for name, e := range all {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"instruction.md": "Do it."}
			maps.Copy(files, e.files)
			files["task.toml"] = strings.Replace("[environment]\n"+files["task.toml"], "[environment]\n", "[environment]\nnetwork_mode = 'no-network'\n", 1)
			agent, code := "nop", 0
			if e.agent != "" {
				agent = e.agent
			}
			if e.fault != "" {
				code = 1
			}
			p := b.run(t, "--agent", agent, makeTask(t, files))
			if got := p.wait(t, 10*time.Minute); got != code {
				t.Errorf("exit status %d, want %d", got, code)
			}
			r := results(t, p)[0]
			if (r.Reward == nil) != (e.reward == nil) || r.Reward != nil && *r.Reward != *e.reward {
				t.Errorf("reward %v", r.Reward)
			}
			if r.Fault == nil && e.fault != "" || r.Fault != nil && r.Fault.Code != e.fault {
				t.Errorf("fault %v, want %q", r.Fault, e.fault)
			}
			if len(r.Notes) != len(e.notes) {
				t.Fatalf("notes %q, want %q", r.Notes, e.notes)
			}
			for i, n := range e.notes {
				if !strings.Contains(r.Notes[i], n) {
					t.Errorf("note %q, want %q", r.Notes[i], n)
				}
			}
		})
	}
}

// TestEffectsOfATask checks keys and files by their effect in a sandbox.
func TestEffectsOfATask(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	none, one := 0.0, 1.0
	const both = "echo 0 > " + reward + "; echo '{\"reward\": 1}' > /logs/verifier/reward.json"
	checkEffects(t, map[string]effect{
		"a health check is repeated until it succeeds, before the agent": {agent: "oracle", reward: &one, files: map[string]string{
			"task.toml":         "[environment.healthcheck]\ncommand = 'echo >> /tmp/tries; test $(wc -l < /tmp/tries) = 3'\ninterval_sec = 0.01\nretries = 9\n",
			"solution/solve.sh": "wc -l < /tmp/tries > out.txt",
			"tests/test.sh":     "test $(cat out.txt) = 3 && echo 1 > " + reward,
		}},
		"a health check that never succeeds": {fault: schema.CodeSetup, files: map[string]string{
			"task.toml":     "[environment.healthcheck]\ncommand = 'exit 1'\ninterval_sec = 0.01\nretries = 2\n",
			"tests/test.sh": "echo 1 > " + reward,
		}},
		"the working directory": {agent: "oracle", reward: &one, files: map[string]string{
			"task.toml": "workdir = '/srv/a b'\n", "environment/given": "x",
			"solution/solve.sh": "cat given > out.txt; pwd >> out.txt",
			"tests/test.sh":     "test \"$(pwd)\" = '/srv/a b' && test \"$(cat '/srv/a b/out.txt')\" = 'x/srv/a b' && echo 1 > " + reward,
		}},
		"reward.json before reward.txt": {reward: &one, files: map[string]string{"tests/test.sh": both}},
		"reward.txt alone":              {reward: &none, files: map[string]string{"tests/test.sh": "echo 0 > " + reward}},
		"a reward.json that cannot be read": {fault: schema.CodeNoReward, files: map[string]string{
			"tests/test.sh": "echo 1 > " + reward + "; echo x > /logs/verifier/reward.json"}},
		"rewards without a headline": {notes: []string{"none of the rewards a, b is the headline"}, files: map[string]string{
			"tests/test.sh": "echo '{\"a\": 1, \"b\": 0}' > /logs/verifier/reward.json"}},
	})
}

// TestProcessesThatTheAgentLeft: a verifier in the agent's sandbox finds the services
// that the agent started, but none that uses the verifier's files.
func TestProcessesThatTheAgentLeft(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	none, one := 0.0, 1.0
	const (
		service = "(while :; do [ -e /tmp/ask ] && rm /tmp/ask && echo yes > /tmp/answer; sleep 0.05; done) >/dev/null 2>&1 &\n"
		asks    = "touch /tmp/ask; i=0; until [ -e /tmp/answer ] || [ $i = $tries ]; do sleep 0.05; i=$((i+1)); done; if [ -e /tmp/answer ]; then echo 1; else echo 0; fi > " + reward
	)
	checkEffects(t, map[string]effect{
		"a service": {agent: "oracle", reward: &one, notes: []string{"verify: processes that the agent left run on"}, files: map[string]string{
			"solution/solve.sh": service, "tests/test.sh": "tries=1200; " + asks,
		}},
		"a service that is not wanted": {agent: "oracle", reward: &none, files: map[string]string{
			"task.toml": "[verifier]\nprocesses = 'end'\n", "solution/solve.sh": service, "tests/test.sh": "tries=40; " + asks,
		}},
		"a service in the folder of the reward": {agent: "oracle", reward: &none, notes: []string{"used the verifier's files and were ended before the verifier started"}, files: map[string]string{
			"solution/solve.sh": "cd /logs/verifier\n" + service, "tests/test.sh": "tries=40; " + asks,
		}},
		"a service that waits for the tests": {agent: "oracle", reward: &one, notes: []string{"run on", "used the verifier's files and were ended"}, files: map[string]string{
			// It may be ended after it opened the tests and before it says so.
			"solution/solve.sh": "(until [ -e /tests/test.sh ]; do sleep 0.01; done; exec 9</tests/test.sh 8>/tmp/open; sleep 1000) >/dev/null 2>&1 &",
			"tests/test.sh":     "i=0; until [ -e /tmp/open ] || [ $i = 1000 ]; do sleep 0.01; i=$((i+1)); done; echo 1 > " + reward,
		}},
		"a time limit": {agent: "oracle", reward: &none, fault: schema.CodeTimeout, files: map[string]string{
			"task.toml": "[agent]\ntimeout_sec = 1\n", "solution/solve.sh": service + "sleep 100", "tests/test.sh": "tries=40; " + asks,
		}},
	})
}

// TestAProcessOfAnotherUserWritesNoReward: it is not ended, and it cannot take the
// place of the verifier's folder.
func TestAProcessOfAnotherUserWritesNoReward(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: this needs root; an ordinary user's sandbox has one user")
	}
	none := 0.0
	files := func(more string) map[string]string {
		return map[string]string{
			"task.toml": "[agent]\nuser = 'nobody'\n" + more,
			"solution/solve.sh": "(until [ -e /tests/test.sh ]; do sleep 0.01; done; touch /tmp/begun; while :; do echo '{\"reward\": 1}' > /logs/verifier/reward.json; " +
				"mv /logs/verifier /logs/mine; mkdir /logs/verifier; echo 1 > " + reward + "; sleep 0.05; done) >/dev/null 2>&1 &",
			"tests/test.sh": "until [ -e /tmp/begun ]; do sleep 0.01; done; sleep 0.5; echo 0 > " + reward,
		}
	}
	checkEffects(t, map[string]effect{
		"a process of another user that writes a reward": {agent: "oracle", reward: &none, notes: []string{"run on"}, files: files("")},
		"a folder of logs that belongs to the agent":     {agent: "oracle", reward: &none, notes: []string{"run on"}, files: files("[turngate]\nsetup = ['chown nobody /logs']\n")},
	})
}

// TestEffectsOfSteps runs a step's setup.sh like the other scripts of a task, and
// adds up the rewards of steps.
func TestEffectsOfSteps(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	one := 1.0
	const passes = " && echo 1 > " + reward
	checkEffects(t, map[string]effect{
		"as they are published": {reward: &one, notes: []string{"setup.sh has CR LF line ends and ran with LF"}, files: map[string]string{
			"task.toml":                    "[[steps]]\nname = 'crlf'\n[[steps]]\nname = 'cat'\n[[steps]]\nname = 'bash'\n",
			"steps/crlf/instruction.md":    "x",
			"steps/crlf/workdir/setup.sh":  "#!/bin/sh -e\r\nif true; then\r\n  touch made\r\nfi\r\n",
			"steps/crlf/workdir/other.txt": "kept\r\n",
			"steps/crlf/tests/test.sh":     "test -e made && test $(wc -c < other.txt) = 6" + passes,
			"steps/cat/instruction.md":     "x",
			"steps/cat/workdir/setup.sh":   "#!/bin/cat\nexit 7\n",
			"steps/cat/tests/test.sh":      "true" + passes,
			"steps/bash/instruction.md":    "x",
			"steps/bash/workdir/setup.sh":  "[[ $0 == */setup.sh ]] && touch bash",
			"steps/bash/tests/test.sh":     "test -e bash" + passes,
		}},
		"rewards without a headline": {notes: []string{"a, b is the headline", "the steps together: the reward is null, since none of the rewards a, b, c"}, files: map[string]string{
			"task.toml":                "[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n",
			"steps/one/instruction.md": "x", "steps/one/tests/test.sh": "echo '{\"a\": 1, \"b\": 0}' > /logs/verifier/reward.json",
			"steps/two/instruction.md": "x", "steps/two/tests/test.sh": "echo '{\"c\": 1}' > /logs/verifier/reward.json",
		}},
		"bash runs scripts for other shells": {reward: &one, files: map[string]string{
			"task.toml":                  "[[steps]]\nname = 'one'\n",
			"steps/one/instruction.md":   "x",
			"steps/one/workdir/setup.sh": "#!/usr/bin/env -S dash -e\nfalse\n[[ $BASH_VERSION ]] && touch made\n",
			"steps/one/tests/test.sh":    "test -e made" + passes,
		}},
	})
}
