package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/internal/backends/prime/primetest"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// accountOf returns a program that runs the binary with an account of a server.
func accountOf(t *testing.T, env []string, binary string) string {
	t.Helper()
	script := "#!/bin/sh\n"
	for _, variable := range env {
		script += "export " + plain.Word(variable) + "\n"
	}
	path := filepath.Join(t.TempDir(), "turngate")
	harness.Must(t, os.WriteFile(path, []byte(script+"exec "+plain.Word(binary)+` "$@"`+"\n"), 0o700))
	return path
}

// rolloutsAt runs tasks in sandboxes of a service's test server: a task that the agent
// solves, and one that it does not. The backend has this name; more has the flags besides the
// place and the bounds.
func rolloutsAt(t *testing.T, name, place string, env []string, secret string, more ...string) {
	t.Helper()
	binary, tasks := accountOf(t, env, testenv.Binary(t)), filepath.Join(testenv.Root(t), "examples/tasks")
	doctor := start(t, binary, "doctor", "--"+name, place)
	_ = doctor.wait(t, 10*time.Minute) // other lines may tell a problem
	kind, _ := backends.Find(name)
	if !strings.Contains(doctor.out.String(), fmt.Sprintf("ok       %-16s %s", name+" sandbox", kind.Works)) {
		t.Fatalf("doctor: %s", doctor.out)
	}
	for task, want := range map[string]float64{"hello": 1, "wrong": 0} {
		args := slices.Concat([]string{binary, "run", "-o", "json", "--sandbox", name, "--" + name, place, "--" + name + "-sandboxes", "2", "--" + name + "-per-minute", "600"}, more, []string{filepath.Join(tasks, task)})
		p := start(t, args...)
		if code := p.wait(t, 10*time.Minute); code != 0 {
			t.Fatalf("%s: exit status %d", task, code)
		}
		r := results(t, p)
		if len(r) != 1 || r[0].Reward == nil || *r[0].Reward != want || r[0].Fault != nil {
			t.Errorf("%s: got %+v", task, r)
		}
		if strings.Contains(fmt.Sprint(p.out, p.err), secret) {
			t.Error("the key of the account is in the output")
		}
	}
}

// TestAServiceThatRefusesDelaysItsOwnRollouts: while it refuses the account, the rollout waits
// for a sandbox, with a reason, and one in a local sandbox runs on the same worker. When the
// service works again, the rollout runs, without the loss of a try.
func TestAServiceThatRefusesDelaysItsOwnRollouts(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	s := primetest.Start(t)
	b := newBench(t)
	b.binary = accountOf(t, s.Env(), b.binary)
	b.worker(t, "", "--sandboxes", "local,prime", "--prime", primetest.Image)
	checked := len(s.Made()) // by the start of the worker
	s.Refuse(1_000_000, http.StatusUnauthorized, "")
	hello := filepath.Join(testenv.Root(t), "examples/tasks/hello")
	waits := b.run(t, "--sandbox", "prime", hello)
	harness.Eventually(t, "a parked rollout with a reason", 5*time.Minute, func() bool {
		ls := start(t, b.binary, "queue", "ls", "-o", "wide", "--nats", b.nats.URL(), "--creds", b.nats.OpsCreds())
		return ls.wait(t, 5*time.Minute) == 0 && strings.Contains(ls.out.String(), "no prime sandbox can be made for now: Prime answers 401: refused for a test")
	})
	other := b.run(t, "--sandbox", "local", hello)
	if code := other.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("local: exit status %d", code)
	}
	if r := results(t, other)[0]; r.Reward == nil || *r.Reward != 1 || len(s.Made()) != checked {
		t.Errorf("local: %+v, %d sandboxes at Prime, %d before", r, len(s.Made()), checked)
	}
	s.Refuse(0, 0, "")
	if code := waits.wait(t, 10*time.Minute); code != 0 {
		t.Fatalf("prime: exit status %d", code)
	}
	r := results(t, waits)[0]
	if r.Reward == nil || *r.Reward != 1 || r.Fault != nil {
		t.Errorf("prime: %+v", r)
	}
	state, err := broker.ReadRecord[schema.State](t.Context(), b.nats.Ops(t).Messages, subjects.State(r.ID))
	if err != nil || state.Value.Tries != 1 {
		t.Errorf("prime: %d tries of attempt %d, %v", state.Value.Tries, r.Attempt, err)
	}
	harness.Eventually(t, "no sandbox is left", 5*time.Minute, func() bool { return len(s.Sandboxes()) == 0 })
}
