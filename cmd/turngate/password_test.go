package main_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestNoCommandPrintsAPassword: URLs of NATS are printed by commands that reach a server, and
// by commands that do not.
func TestNoCommandPrintsAPassword(t *testing.T) {
	p, keys := newPerson(t), filepath.Join(t.TempDir(), "creds")
	check := func(code int, says string, args ...string) {
		t.Helper()
		got := p.turngate(t, args...)
		if all := got.out + got.errOut; got.code != code || !strings.Contains(all, says) || strings.Contains(all, "secret") {
			t.Errorf("%v: %+v\nwant %d, %q, and no password", args, got, code, says)
		}
	}
	const url = "nats://me:secret@127.0.0.1:1"
	for kind, says := range map[string]string{
		"trainer": "trainer  alpha: --nats nats://127.0.0.1:1 --creds",
		"worker":  "worker   alpha: turngate worker --nats nats://127.0.0.1:1 --creds",
		"machine": "machine  alpha: turngate machine serve --nats nats://127.0.0.1:1 --creds",
	} {
		check(0, says, kind, "add", "alpha", "--nats", url, "--keys", keys)
	}
	check(1, "a running server admits it until it has read", "worker", "rm", "alpha", "--nats", url, "--keys", keys)
	check(1, "connect to NATS at nats://127.0.0.1:1: ", "worker", "ls", "--nats", url)
	check(1, "connect to NATS at nats://127.0.0.1:1: not valid", "worker", "ls", "--nats", "nats://me:secret%zz@127.0.0.1:1")
	check(1, "connect to NATS at nats://127.0.0.1:1: ", "machine", "enroll", "--nats", url, "--name", "m", "--state", t.TempDir())
	check(2, `--nats: "nats://127.0.0.1:1" is not valid: want no user and no password`, "context", "add", "mine", "--nats", "nats://secret@127.0.0.1:1")
	check(2, `--nats: "nats://127.0.0.1:1" is not valid: want a URL`, "context", "add", "mine", "--nats", "nats://me:secret%zz@127.0.0.1:1")
}
