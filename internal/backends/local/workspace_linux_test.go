package local_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
)

// A workspace stays, belongs to one user other than the host's root, and no other folder lies
// in its sandbox.
func TestAWorkspace(t *testing.T) {
	b := backend(t)
	b.Workspace = t.TempDir()
	s := sandboxes.Spec{Owner: "local", Rollout: "alpha-1", Attempt: 1}
	if os.Geteuid() == 0 {
		if _, err := b.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), "belongs to the user or the group root") {
			t.Errorf("a folder of root: %v", err)
		}
		harness.Must(t, os.Chown(b.Workspace, 1000, 1000))
	}
	for field, bad := range map[string]sandboxes.Spec{"workdir": {Workdir: "/tmp"}, "mounts": {Mounts: []sandboxes.Mount{{Host: t.TempDir(), Guest: "/opt/x"}}}} {
		bad.Owner, bad.Rollout = s.Owner, s.Rollout
		var no *sandboxes.UnsupportedError
		if _, err := b.Create(t.Context(), bad); !errors.As(err, &no) {
			t.Errorf("%s: got %v", field, err)
		}
	}
	for attempt, want := range []string{"0\n/workspace\n1\n", "0\n/workspace\n2\n"} {
		s.Attempt = attempt + 1
		sb, err := b.Create(t.Context(), s)
		harness.Must(t, err)
		if got := output(t, sb, "id -u; pwd; echo x >>runs; wc -l <runs; chown 1000 runs 2>/dev/null && echo changed; true"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		harness.Must(t, sb.Close(t.Context()))
	}
}
