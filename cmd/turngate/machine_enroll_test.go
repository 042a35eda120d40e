package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// hall is a server at which hosts enroll, in a process of its own.
type hall struct{ binary, url, keys string }

func newHall(t *testing.T) *hall {
	t.Helper()
	binary, port, state := testenv.Binary(t), strconv.Itoa(testenv.FreePort(t)), filepath.Join(t.TempDir(), "state")
	srv := launch(t, binary, "nats", "--enroll", "--relaxed-sync", "--port", port, "--state", state)
	harness.Eventually(t, "the server", 5*time.Minute, func() bool { return strings.Contains(srv.err.String(), "NATS is ready") })
	return &hall{binary, "nats://127.0.0.1:" + port, filepath.Join(state, "creds")}
}

// enroll starts a host that asks to become a machine, and returns its code.
func (h *hall) enroll(t *testing.T, name, state string) (host *running, code string) {
	t.Helper()
	host = launch(t, h.binary, "machine", "enroll", "--nats", h.url, "--name", name, "--state", state)
	shown := regexp.MustCompile(`code     (\S{4}-\S{4}-\S{4}), `)
	harness.Eventually(t, "the code of "+name, 5*time.Minute, func() bool { return shown.MatchString(host.out.String()) })
	return host, shown.FindStringSubmatch(host.out.String())[1]
}

// run is a command of the operator.
func (h *hall) run(t *testing.T, verb string, args ...string) outcome {
	t.Helper()
	return turngate(t, h.binary, append([]string{"machine", verb, "--keys", h.keys}, args...)...)
}

// A host without a credential is admitted after an operator's approval, and serves. Another
// host takes its name only with --replace; then the first one ends. A revoked machine ends,
// and does not start again.
func TestAHostEnrolls(t *testing.T) {
	testenv.Slow(t)
	h := newHall(t)
	serve := func(state string) *running {
		t.Helper()
		m := launch(t, h.binary, "machine", "serve", "--nats", h.url, "--creds", filepath.Join(state, "machine-build1.nk"), "--state", state)
		harness.Eventually(t, "the machine", 5*time.Minute, func() bool { return strings.Contains(m.err.String(), "the machine is ready") })
		return m
	}
	admitted := func(host *running, state string) {
		t.Helper()
		if code := host.wait(t); code != 0 || !strings.Contains(host.out.String(), "build1 is admitted: turngate machine serve --nats "+h.url) {
			t.Fatalf("exit status %d: %s%s", code, &host.out, &host.err)
		}
		if info, err := os.Stat(filepath.Join(state, "machine-build1.nk")); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("the credential: %v, %v", info, err)
		}
	}
	states := []string{filepath.Join(t.TempDir(), "m"), filepath.Join(t.TempDir(), "m")}

	host, code := h.enroll(t, "build1", states[0])
	if got := h.run(t, "requests", "-o", "json"); got.code != 0 || !strings.Contains(got.out, `"`+code+`"`) || !strings.Contains(got.out, `"machine": "build1"`) {
		t.Errorf("requests: %+v", got)
	}
	if got := h.run(t, "approve", code, "--nats", h.url); got.code != 1 || !strings.Contains(got.out, "machine  build1") || !strings.Contains(got.errOut, "nothing has changed") {
		t.Errorf("without an answer: %+v", got)
	}
	if got := h.run(t, "approve", strings.ToLower(code), "--nats", h.url, "--yes"); got.code != 0 || !strings.Contains(got.out, "in effect at once") {
		t.Fatalf("approve: %+v", got)
	}
	admitted(host, states[0])
	first := serve(states[0])

	host, code = h.enroll(t, "build1", states[1])
	if got := h.run(t, "approve", code, "--nats", h.url, "--yes"); got.code != 1 || !strings.Contains(got.errOut, "build1: the machine has another key already: --replace") {
		t.Errorf("the name of a machine: %+v", got)
	}
	if got := h.run(t, "approve", code, "--nats", h.url, "--yes", "--replace"); got.code != 0 {
		t.Fatalf("approve --replace: %+v", got)
	}
	admitted(host, states[1])
	if code := first.wait(t); code != 1 || !strings.Contains(first.err.String(), "another key was approved for its name") {
		t.Errorf("the machine whose key was replaced: exit status %d, %s", code, &first.err)
	}

	second := serve(states[1])
	if got := h.run(t, "revoke", "build1", "--nats", h.url); got.code != 0 || got.out != "machine build1 is shut out\n" {
		t.Errorf("revoke: %+v", got)
	}
	if code := second.wait(t); code != 1 || !strings.Contains(second.err.String(), "the server has shut this machine out") {
		t.Errorf("a revoked machine: exit status %d, %s", code, &second.err)
	}
	if got := turngate(t, h.binary, "machine", "serve", "--nats", h.url, "--creds", filepath.Join(states[1], "machine-build1.nk"), "--state", states[1]); got.code != 1 || !strings.Contains(got.errOut, "the server has shut this machine out") {
		t.Errorf("a revoked machine that starts: %+v", got)
	}
}

func TestAHostIsDenied(t *testing.T) {
	h := newHall(t)
	host, code := h.enroll(t, "build1", filepath.Join(t.TempDir(), "m"))
	if got := h.run(t, "deny", code); got.code != 0 || !strings.Contains(got.out, "the machine build1 is denied") {
		t.Errorf("deny: %+v", got)
	}
	if status := host.wait(t); status != 1 || !strings.Contains(host.err.String(), "an operator has denied the request") {
		t.Errorf("exit status %d: %s%s", status, &host.out, &host.err)
	}
	if got := h.run(t, "approve", code, "--nats", h.url, "--yes"); got.code != 1 || !strings.Contains(got.errOut, "denied") {
		t.Errorf("approve after that: %+v", got)
	}
	if got := h.run(t, "requests"); got.code != 0 || !strings.Contains(got.out, "denied") {
		t.Errorf("requests: %+v", got)
	}
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"an unknown code": {[]string{"approve", "--keys", h.keys, "--yes", "0000-0000-0000"}, 1, "no host asks with this code"},
		"a bad code":      {[]string{"deny", "--keys", h.keys, "../x"}, 2, "want one such as"},
		"no code":         {[]string{"approve", "--keys", h.keys}, 2, "want one"},
		"no folder":       {[]string{"requests", "--keys", filepath.Join(h.keys, "none")}, 2, "want the server's folder of credentials"},
		"a bad name":      {[]string{"enroll", "--name", "a.b"}, 2, "--name"},
		"no server":       {[]string{"enroll", "--name", "a", "--state", t.TempDir(), "--nats", "nats://127.0.0.1:" + strconv.Itoa(testenv.FreePort(t))}, 1, "connect to NATS"},
	} {
		if got := turngate(t, h.binary, append([]string{"machine"}, tt.args...)...); got.code != tt.code || !strings.Contains(got.errOut, tt.says) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
