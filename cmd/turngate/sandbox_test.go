package main

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
)

// TestHostsThatFailAreAnError: a worker with --ssh does not start without its hosts.
func TestHostsThatFailAreAnError(t *testing.T) {
	testenv.Slow(t)
	h := sandboxes.Host{Helper: "/proc/self/exe", StateDir: t.TempDir(), SSH: sandboxes.SSH{Hosts: []string{"ssh://127.0.0.1:1"}, Config: "/dev/null"}}
	if _, err := (patience{}).open(t.Context(), nil, h, zerolog.Nop()); err == nil || !strings.HasPrefix(err.Error(), "the ssh sandbox: ") {
		t.Errorf("got %v", err)
	}
}
