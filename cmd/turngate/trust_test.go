package main_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// asked is a model server that keeps the keys that it was sent.
type askedKeys struct {
	mu   sync.Mutex
	keys []string
}

func (a *askedKeys) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.keys = append(a.keys, r.Header.Get("Authorization"))
	http.Error(w, `{"error":{"message":"no"}}`, http.StatusBadRequest)
}

func (a *askedKeys) has(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Contains(a.keys, "Bearer "+key)
}

// TestAJobOfAnotherPersonGetsNothing of what its flags want, before the user agrees: a key, a
// variable, a file. The job of the same user says what it gets.
func TestAJobOfAnotherPersonGetsNothing(t *testing.T) {
	testenv.Slow(t)
	model := &askedKeys{}
	srv := httptest.NewServer(model)
	defer srv.Close()
	author, reader, temp := newPerson(t), newPerson(t), t.TempDir()
	dir := task(t, map[string]string{
		"instruction.md": "x", "task.toml": "[agent]\ntimeout_sec = 30\n[verifier.env]\nK = \"${OWN_VALUE}\"\n",
		"tests/test.sh": "#!/bin/sh\necho \"K is $K\"; echo 0.5 > /logs/verifier/reward.txt\n",
	})
	job := filepath.Join(temp, "job")
	as := func(p person, args ...string) outcome {
		cmd := p.command(t, args...)
		cmd.Env = append(cmd.Env, "OWN_VALUE=value-of-"+filepath.Base(p.home), "TURNGATE_UPSTREAM_KEY=key-of-"+filepath.Base(p.home))
		return outcomeOf(t, cmd)
	}
	key := func(p person) string { return "key-of-" + filepath.Base(p.home) }
	made := as(author, "run", "--agent", "mini", "--sandbox", "local", "--console", "off", "--trainer", "upstream:"+srv.URL+"/v1", "--plain-upstream", "--model", "m", "--task-env", "OWN_VALUE", "--out", job, dir)
	if !model.has(key(author)) {
		t.Fatalf("the model was not asked: %+v", made)
	}
	forget := func() {
		files, err := filepath.Glob(filepath.Join(job, "*", "result.json"))
		harness.Must(t, err)
		for _, f := range files {
			harness.Must(t, os.Remove(f))
		}
	}
	forget()
	refused := as(reader, "run", "--resume", job, "--console", "off")
	if refused.code != 2 || model.has(key(reader)) {
		t.Errorf("got %+v", refused)
	}
	for _, want := range []string{"your key in TURNGATE_UPSTREAM_KEY, for " + srv.URL, "your variable OWN_VALUE, for its tasks (--task-env)", "--trust"} {
		if !strings.Contains(refused.errOut, want) {
			t.Errorf("no %q in %s", want, refused.errOut)
		}
	}
	if got := as(author, "run", "--resume", job, "--console", "off"); !strings.Contains(got.errOut, "gets:\n  your variable OWN_VALUE") {
		t.Errorf("the author's own job: %+v", got)
	}
	forget()
	plan := filepath.Join(job, "turngate.json")
	data, err := os.ReadFile(plan)
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(plan, []byte(strings.Replace(string(data), `"OWN_VALUE"`, `"HOME"`, 1)), 0o600))
	if got := as(author, "run", "--resume", job, "--console", "off"); got.code != 2 || !strings.Contains(got.errOut, "your variable HOME, for its tasks") {
		t.Errorf("the author's job, changed by another: %+v", got)
	}
	harness.Must(t, os.WriteFile(plan, data, 0o600))
	for _, args := range [][]string{{"rollout", "replay", filepath.Join(job, trialOf(t, job))}, {"job", "regrade", job}} {
		if got := as(reader, args...); got.code != 2 || !strings.Contains(got.errOut, "--trust gives it that") {
			t.Errorf("%q: %+v", args, got)
		}
	}
	if got := as(reader, "run", "--resume", job, "--console", "off", "--trust"); !model.has(key(reader)) || !strings.Contains(got.errOut, "gets:\n") {
		t.Errorf("after the user agreed: %+v", got)
	}
}

// trialOf returns the name of the first trial of a job.
func trialOf(t *testing.T, job string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(job, "turngate.json"))
	harness.Must(t, err)
	var p struct{ Trials []struct{ Name string } }
	harness.Must(t, json.Unmarshal(data, &p))
	return p.Trials[0].Name
}

// TestEachFlagOfAJobIsLookedAt: a new flag of run takes nothing of a user without a word.
func TestEachFlagOfAJobIsLookedAt(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("trust.go")
	harness.Must(t, err)
	harmless := strings.Fields(`agent agent-timeout allow-host console console-read-only context cpus detach disk e2b-per-minute e2b-sandboxes exclude filter group help image
		keep-failed keep-reasoning keep-workdir kubernetes-context kubernetes-gpus kubernetes-helper-image kubernetes-node-selector kubernetes-pull-secrets kubernetes-runtime-class kubernetes-toleration kubernetes-user-namespaces
		label limit max-calls max-cost max-repeats max-tokens max-tokens-total max-turns mcp memory modal-app modal-per-minute modal-sandboxes mode model name nats network open out output parallel pids plain-upstream
		prime-cpus prime-disk-gb prime-memory-gb prime-per-minute prime-sandboxes rerun rerun-below resume retry runs sandbox sandbox-usd-per-hour seed setup snapshot stream system-prompt timeout trust verbose verifier wait`)
	help := newPerson(t).turngate(t, "run", "--help")
	all := regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z0-9-]+)`).FindAllStringSubmatch(help.out, -1)
	if len(all) < 60 {
		t.Fatalf("%d flags in %s", len(all), help.out)
	}
	for _, m := range all {
		if !slices.Contains(harmless, m[1]) && !strings.Contains(string(source), `"`+m[1]+`"`) {
			t.Errorf("--%s: trust.go does not say what it takes of this user, and it is not among the harmless flags", m[1])
		}
	}
}
