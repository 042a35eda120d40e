package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// TestMain lets the test binary act as its own helper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "box" {
		os.Exit(local.BoxMain(os.Args[2:]))
	}
	if len(os.Args) > 2 && os.Args[1] == "create" {
		os.Exit(createAndStop(os.Args[2]))
	}
	if len(os.Args) > 2 && os.Args[1] == "keyring" {
		os.Exit(lookAtKeyring(os.Args[2]))
	}
	os.Exit(m.Run())
}

func backend(t *testing.T) *local.Backend {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &local.Backend{Helper: exe, StateDir: t.TempDir()}
	if err := b.Check(t.Context()); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("local sandboxes do not work here: %v", err)
		}
		t.Skipf("SKIPPED: local sandboxes do not work here: %v", err)
	}
	return b
}

func TestContract(t *testing.T) {
	root := os.Geteuid() == 0
	sandboxtest.Run(t, sandboxtest.Fixture{
		New:      func(t *testing.T) sandboxes.Backend { return backend(t) },
		Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: root, Users: root},
	})
}

func open(t *testing.T, s sandboxes.Spec) sandboxes.Sandbox {
	t.Helper()
	s.Owner, s.Rollout, s.Attempt = "local", "alpha-1", 1
	sb, err := backend(t).Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	return sb
}

func output(t *testing.T, sb sandboxes.Sandbox, script string) string {
	t.Helper()
	var out strings.Builder
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/sh", "-c", script}, Stdout: &out, Stderr: &out, Untrusted: true, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestTheHostIsNotVisible(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("host"), 0o644); err != nil {
		t.Fatal(err)
	}
	sb := open(t, sandboxes.Spec{})
	got := output(t, sb, `cat `+secret+` /etc/shadow /etc/ssh/* 2>&1 | grep -v -i "no such file" ; ls /home /root /srv /opt /var/lib /run /sys 2>/dev/null | grep -v ':$' | grep .; touch /usr/x 2>/dev/null && echo "wrote /usr"; cat /proc/sys/user/max_user_namespaces`)
	if strings.TrimSpace(got) != "0" {
		t.Fatalf("got %q", got)
	}
	if got := output(t, sb, `grep -c . /etc/passwd; ls / | tr '\n' ' '`); !strings.HasPrefix(got, "3\n") {
		t.Fatalf("got %q", got)
	}
}

// TestTheUmaskOfTheWorkerDoesNotCount: other users of the sandbox can read its files and
// enter its working directory.
func TestTheUmaskOfTheWorkerDoesNotCount(t *testing.T) {
	old := syscall.Umask(0o077)
	sb := open(t, sandboxes.Spec{})
	syscall.Umask(old)
	if got := output(t, sb, `umask; stat -c %a . /etc/passwd /.turngate`); got != "0022\n755\n644\n755\n" {
		t.Errorf("got %q", got)
	}
}

func TestTheAgentHasAProcessNamespaceOfItsOwn(t *testing.T) {
	sb := open(t, sandboxes.Spec{})
	got := output(t, sb, `echo $$; ls -d /proc/[0-9]* | wc -l; setsid sleep 7003 & exit 0`)
	// These are the first process, the shell, and perhaps the two processes of
	// the pipe.
	if lines := strings.Fields(got); len(lines) != 2 || lines[1] > "4" {
		t.Fatalf("got %q", got)
	}
	if err := sb.KillAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/sh", "-c", `cat /proc/*/cmdline | tr '\0' ' '`}, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil || strings.Contains(out.String(), "sleep 7003") {
		t.Fatalf("what the agent left lives on: %q, %v", out.String(), err)
	}
}

func TestRootMapsToAnUnusedHostUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: this needs root; an ordinary user maps to itself")
	}
	sb := open(t, sandboxes.Spec{})
	if got := strings.Fields(output(t, sb, `cat /proc/self/uid_map`)); len(got) != 3 || got[0] != "0" || got[1] < "1879048192" {
		t.Fatalf("uid map %v", got)
	}
}

func TestDiskLimitIsTheRootsSize(t *testing.T) {
	sb := open(t, sandboxes.Spec{DiskBytes: 8 << 20})
	if got := output(t, sb, `head -c 20000000 /dev/zero > /workspace/x; stat -c %s /workspace/x`); !strings.Contains(got, "No space left") {
		t.Fatalf("got %q", got)
	}
}

func TestPidsLimit(t *testing.T) {
	sb := open(t, sandboxes.Spec{Pids: 30})
	if got := output(t, sb, `for i in $(seq 60); do sleep 5 & done 2>&1; true`); !strings.Contains(strings.ToLower(got), "fork") {
		t.Fatalf("sixty processes were started: %q", got)
	}
}

// TestASandboxWithoutLimitsHasDefaults reads the limits of a sandbox without limits in its
// specification.
func TestASandboxWithoutLimitsHasDefaults(t *testing.T) {
	sb := open(t, sandboxes.Spec{})
	var blocks, size, memory int64
	got := output(t, sb, `stat -f -c '%b %S' /workspace; sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo`)
	if n, err := fmt.Sscan(got, &blocks, &size, &memory); n != 3 || blocks*size <= 0 || blocks*size > memory<<10 {
		t.Errorf("the root has %d blocks of %d bytes, the machine %d kB of memory (%v): %q", blocks, size, memory, err, got)
	}
	pids := []string{output(t, sb, "ulimit -p 2>/dev/null || ulimit -u")}
	for _, at := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		if limit, err := os.ReadFile(filepath.Join(at, "turngate-local.alpha-1.1", "pids.max")); err == nil {
			pids = append(pids, string(limit))
		}
	}
	for i := range pids {
		pids[i] = strings.TrimSpace(pids[i])
	}
	want := sandboxes.DefaultPids + box.Threads
	if !slices.Contains(pids, strconv.Itoa(want)) {
		t.Errorf("the limits of processes are %q, want %d", pids, want)
	}
}

// A cgroup that a dead worker left must not let a sandbox run without limits.
func TestALimitHoldsInAGroupThatIsLeft(t *testing.T) {
	left := "/sys/fs/cgroup/pids/turngate-local.alpha-1.1"
	if _, err := os.Stat(filepath.Dir(left)); err != nil {
		left = "/sys/fs/cgroup/turngate-local.alpha-1.1"
	}
	if err := os.Mkdir(left, 0o755); err != nil {
		t.Skipf("SKIPPED: this process may not make a cgroup: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(left) })
	sb := open(t, sandboxes.Spec{Pids: 30})
	if got := output(t, sb, `for i in $(seq 60); do sleep 5 & done 2>&1; true`); !strings.Contains(strings.ToLower(got), "fork") {
		t.Fatalf("sixty processes were started: %q", got)
	}
}

func TestSettingsThatCannotBeEnforcedAreRefusedByName(t *testing.T) {
	b := backend(t)
	for field, s := range map[string]sandboxes.Spec{
		"sandbox.network": {Network: "open"},
		"sandbox.image":   {Image: "debian:12"},
		"sandbox.workdir": {Workdir: "/etc/passwd/x"},
	} {
		s.Owner, s.Rollout = "local", "alpha-1"
		_, err := b.Create(t.Context(), s)
		var no *sandboxes.UnsupportedError
		if !errors.As(err, &no) || no.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if os.Geteuid() != 0 {
		need := sandboxes.Spec{Owner: "local", Rollout: "alpha-1", MemoryBytes: 1 << 30}
		var noted string
		need.Note = func(limit, _ string) { noted = limit }
		sb, err := b.Create(t.Context(), need)
		if err != nil {
			t.Fatal(err)
		}
		if err := sb.Close(t.Context()); err != nil || noted != schema.LimitMemory {
			t.Errorf("a need that is not enforced: noted %q, %v", noted, err)
		}
		need.Strict = []string{schema.LimitMemory}
		_, err = b.Create(t.Context(), need)
		var no *sandboxes.UnsupportedError
		if !errors.As(err, &no) || no.Field != "sandbox.memory_bytes" {
			t.Errorf("memory: got %v", err)
		}
	}
}

// TestAUserOutsideTheSandboxIsRefused tries users to which no command can change.
func TestAUserOutsideTheSandboxIsRefused(t *testing.T) {
	sb := open(t, sandboxes.Spec{})
	users := map[string]string{"70000": "uid 70000", "0:70000": "gid 70000", "nosuchuser": "/etc/passwd", "root:nosuchgroup": "/etc/group"}
	if os.Geteuid() != 0 {
		users["1000"] = "uid 1000, only 0"
	}
	for user, reason := range users {
		var none *sandboxes.NoUserError
		if err := sb.Files().Mkdir(t.Context(), "/", 0o755, user); !errors.As(err, &none) || none.User != user || !strings.Contains(none.Reason, reason) {
			t.Errorf("user %q owns a folder: %v", user, err)
		}
		var start *sandboxes.NoCommandError
		if _, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"/bin/true"}, User: user}); !errors.As(err, &start) || !strings.Contains(start.Reason, reason) {
			t.Errorf("user %q starts a command: %v", user, err)
		}
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	b := backend(t)
	const owner = "left-behind" // of no other package: their tests may run now
	sb, err := b.Create(t.Context(), sandboxes.Spec{Owner: owner, Rollout: "alpha-1", Attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(b.StateDir, "local", "*"))
	groups, _ := filepath.Glob("/sys/fs/cgroup/turngate-" + owner + "*")
	older, _ := filepath.Glob("/sys/fs/cgroup/*/turngate-" + owner + "*")
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if left = append(append(left, groups...), older...); len(left) > 0 || strings.Contains(string(mounts), b.StateDir) {
		t.Fatalf("left behind: %v, or a mount of\n%s", left, mounts)
	}
}
