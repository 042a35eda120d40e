package ssh_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/ssh"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/sshd"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// two returns settings of ssh for the hosts bad and good.
func two(t *testing.T, bad, good *sshd.Server) string {
	t.Helper()
	var all strings.Builder
	for name, s := range map[string]*sshd.Server{"bad": bad, "good": good} {
		text, err := os.ReadFile(s.Config)
		harness.Must(t, err)
		all.WriteString(strings.Replace(string(text), "Host "+sshd.Host, "Host "+name, 1) + "\n")
	}
	path := filepath.Join(t.TempDir(), "config")
	harness.Must(t, os.WriteFile(path, []byte(all.String()), 0o600))
	return path
}

// TestAHostThatFailsIsPassedOver: for each kind of failure. For the next sandbox the host comes
// last.
func TestAHostThatFailsIsPassedOver(t *testing.T) {
	logins := filepath.Join(t.TempDir(), "logins")
	count := "echo >>" + logins + "; "
	for name, script := range map[string]string{
		"no namespaces": `exec unshare -Urm /bin/sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'`,
		"broken":        `echo broken >&2; exit 3`,
	} {
		t.Run(name, func(t *testing.T) {
			harness.Must(t, os.RemoveAll(logins))
			b := backend(t, two(t, sshd.Start(t, forced(t, count+script)), sshd.Start(t)), "bad", "good")
			sandboxtest.Create(t, b, spec())
			first, err := os.ReadFile(logins)
			harness.Must(t, err)
			s := spec()
			s.Attempt = 2
			sandboxtest.Create(t, b, s)
			if second, err := os.ReadFile(logins); err != nil || len(second) != len(first) {
				t.Errorf("%d logins at the bad host after the first sandbox, %d after the second", len(first), len(second))
			}
		})
	}
}

// TestAMixedFailureIsNoFaultOfTheRequest: the host that is away may be able to make it.
func TestAMixedFailureIsNoFaultOfTheRequest(t *testing.T) {
	bare := sshd.Start(t, forced(t, `exec unshare -Urm /bin/sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'`))
	_, err := backend(t, bare.Config, sshd.Host, "ssh://127.0.0.1:1").Create(t.Context(), spec())
	var no *sandboxes.UnsupportedError
	if err == nil || errors.As(err, &no) || !strings.Contains(err.Error(), "user namespaces") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v", err)
	}
}

func TestALoginThatHangsEnds(t *testing.T) {
	s := sshd.Start(t, forced(t, `exec sleep 3600`))
	b := backend(t, s.Config, sshd.Host)
	b.(*ssh.Backend).LoginWithin(time.Second)
	if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "no answer within 1s") {
		t.Errorf("got %v", err)
	}
}

func TestNoHosts(t *testing.T) {
	if _, err := backend(t, "").Create(t.Context(), spec()); !errors.Is(err, sandboxes.ErrNotAsked) {
		t.Errorf("got %v", err)
	}
}

// TestACacheFolderOfOthersIsRefused: a program of another user would run as this one.
func TestACacheFolderOfOthersIsRefused(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"writable": func(dir string) error { return os.Chmod(dir, 0o777) },
		"owned": func(dir string) error {
			if os.Geteuid() != 0 {
				return os.Chmod(dir, 0o720)
			}
			return os.Chown(dir, 65534, 65534)
		},
	} {
		for _, part := range []string{"turngate", "turngate/ssh"} {
			s := sshd.Start(t)
			dir := filepath.Join(s.Cache, part)
			harness.Must(t, os.MkdirAll(filepath.Join(s.Cache, "turngate/ssh"), 0o700))
			harness.Must(t, change(dir))
			if err := backend(t, s.Config, sshd.Host).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "another user owns the folder "+dir+" ") {
				t.Errorf("%s, %s: %v", name, part, err)
			}
		}
	}
}

// TestAnEmptyProgramIsReplaced: a crash of the host may leave it.
func TestAnEmptyProgramIsReplaced(t *testing.T) {
	s := sshd.Start(t)
	b := backend(t, s.Config, sshd.Host)
	harness.Must(t, b.Check(t.Context()))
	programs, err := filepath.Glob(filepath.Join(s.Cache, "turngate/ssh/turngate-*"))
	harness.Must(t, err)
	if len(programs) != 1 {
		t.Fatalf("the programs %q", programs)
	}
	harness.Must(t, os.Remove(programs[0]))
	harness.Must(t, os.WriteFile(programs[0], nil, 0o755))
	harness.Must(t, b.Check(t.Context()))
}

// mounts mounts a tmpfs, for which the test must be root.
func mounts(t *testing.T, dir string, flags uintptr, data string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root")
	}
	harness.Must(t, os.MkdirAll(dir, 0o700))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, data); err != nil {
		t.Skipf("SKIPPED: mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

func TestACacheFolderWithoutProgramsIsNamed(t *testing.T) {
	s := sshd.Start(t)
	mounts(t, s.Cache, syscall.MS_NOEXEC, "size=300m,mode=700")
	if err := backend(t, s.Config, sshd.Host).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "noexec") || !strings.Contains(err.Error(), "XDG_CACHE_HOME") {
		t.Errorf("got %v", err)
	}
}

// TestAFullDiskIsNamed: the other side reads the rest of a folder that it cannot store.
func TestAFullDiskIsNamed(t *testing.T) {
	s := sshd.Start(t)
	mounts(t, filepath.Join(s.Cache, "turngate/ssh/trees"), 0, "size=1m,mode=700")
	harness.Must(t, os.Chmod(filepath.Join(s.Cache, "turngate/ssh"), 0o700))
	dir := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 16<<20), 0o644))
	sp := spec()
	sp.Mounts = []sandboxes.Mount{{Host: dir, Guest: "/opt/agent"}}
	if _, err := backend(t, s.Config, sshd.Host).Create(t.Context(), sp); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("got %v", err)
	}
}

// TestSweepRemovesHalves: copies that ended half-way a day ago.
func TestSweepRemovesHalves(t *testing.T) {
	s := sshd.Start(t)
	cache := filepath.Join(s.Cache, "turngate/ssh")
	for _, name := range []string{"new.old", "new.young", "trees/new-old", "trees/new-young", "trees/old"} {
		path := filepath.Join(cache, name)
		harness.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		harness.Must(t, os.WriteFile(path, nil, 0o600))
		if strings.HasSuffix(name, "old") {
			then := time.Now().Add(-25 * time.Hour)
			harness.Must(t, os.Chtimes(path, then, then))
		}
	}
	_, err := backend(t, s.Config, sshd.Host).Sweep(t.Context(), "ssh", func(schema.ID) bool { return true })
	harness.Must(t, err)
	for name, want := range map[string]bool{"new.old": false, "new.young": true, "trees/new-old": false, "trees/new-young": true, "trees/old": true} {
		if _, err := os.Lstat(filepath.Join(cache, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
