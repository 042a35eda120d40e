package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes/e2b/e2btest"
)

// accountOf returns a program that runs the binary with an account of the server.
func accountOf(t *testing.T, s *e2btest.Server, binary string) string {
	t.Helper()
	script := "#!/bin/sh\n"
	for _, variable := range s.Env() {
		script += "export " + plain.Word(variable) + "\n"
	}
	path := filepath.Join(t.TempDir(), "turngate")
	harness.Must(t, os.WriteFile(path, []byte(script+"exec "+plain.Word(binary)+` "$@"`+"\n"), 0o700))
	return path
}

// TestRolloutsAtE2B runs tasks in sandboxes of a server with E2B's API: a task that the
// agent solves, and one that it does not.
func TestRolloutsAtE2B(t *testing.T) {
	t.Parallel()
	s := e2btest.Start(t)
	binary, tasks := accountOf(t, s, testenv.Binary(t)), filepath.Join(testenv.Root(t), "examples/tasks")
	doctor := start(t, binary, "doctor", "--e2b", e2btest.Template)
	_ = doctor.wait(t, 10*time.Minute) // other lines may tell a problem
	if !strings.Contains(doctor.out.String(), "ok       e2b sandbox      E2B makes sandboxes of the template, and namespaces work in them") {
		t.Fatalf("doctor: %s", doctor.out)
	}
	for task, want := range map[string]float64{"hello": 1, "wrong": 0} {
		p := start(t, binary, "run", "-o", "json", "--sandbox", "e2b", "--e2b", e2btest.Template, "--e2b-sandboxes", "2", "--e2b-per-minute", "600", filepath.Join(tasks, task))
		if code := p.wait(t, 10*time.Minute); code != 0 {
			t.Fatalf("%s: exit status %d", task, code)
		}
		r := results(t, p)
		if len(r) != 1 || r[0].Reward == nil || *r[0].Reward != want || r[0].Fault != nil {
			t.Errorf("%s: got %+v", task, r)
		}
		if strings.Contains(fmt.Sprint(p.out, p.err), s.Key) {
			t.Error("the key of the account is in the output")
		}
	}
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestABrokenStreamOfE2BIsRetried breaks the stream while an agent works: the rollout runs
// again in another sandbox, and the first one is gone.
func TestABrokenStreamOfE2BIsRetried(t *testing.T) {
	t.Parallel()
	s := e2btest.Start(t)
	b := newBench(t)
	b.binary = accountOf(t, s, b.binary)
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
