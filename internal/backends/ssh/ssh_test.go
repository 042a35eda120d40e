package ssh_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/backends/ssh"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/sshd"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
)

// TestMain lets the test binary act as turngate on both sides, and as a worker.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "box":
		os.Exit(local.BoxMain(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == far.Command:
		os.Exit(far.Serve(os.Args[2:]))
	case len(os.Args) > 3 && os.Args[1] == "work":
		os.Exit(work(os.Args[2], os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

func newBackend(s sandboxes.SSH) (sandboxes.Backend, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return ssh.Kind().New(sandboxes.Host{Helper: exe, SSH: s})
}

func backend(t *testing.T, config string, hosts ...string) sandboxes.Backend {
	t.Helper()
	b, err := newBackend(sandboxes.SSH{Hosts: hosts, Config: config})
	harness.Must(t, err)
	return b
}

func spec() sandboxes.Spec {
	return sandboxes.Spec{Owner: "ssh", Rollout: "ssh-1", Attempt: 1, Ready: time.Minute}
}

func TestContract(t *testing.T) {
	testenv.Slow(t)
	root := os.Geteuid() == 0
	sandboxtest.Run(t, sandboxtest.Fixture{
		New: func(t *testing.T) sandboxes.Backend {
			b := backend(t, sshd.Start(t).Config, sshd.Host)
			harness.Must(t, b.Check(t.Context()))
			return b
		},
		Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: root, Users: root},
	})
}

// forced returns a line of sshd's settings: each command runs by this shell script,
// which has it as $SSH_ORIGINAL_COMMAND.
func forced(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "forced")
	harness.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	return "ForceCommand " + path
}

// TestCheckNamesTheMissingPart: each part that a host may lack has its words.
func TestCheckNamesTheMissingPart(t *testing.T) {
	s := sshd.Start(t)
	settings, err := os.ReadFile(s.Config)
	harness.Must(t, err)
	changed := func(old, replacement string) string {
		path := filepath.Join(t.TempDir(), "config")
		harness.Must(t, os.WriteFile(path, []byte(strings.Replace(string(settings), old, replacement, 1)), 0o600))
		return path
	}
	bin := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(bin, "uname"), []byte("#!/bin/sh\ntest $1 = -s && echo Linux || echo s390x\n"), 0o700))
	other := sshd.Start(t, forced(t, "PATH="+bin+":$PATH exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\""))
	bare := sshd.Start(t, forced(t, `exec unshare -Urm /bin/sh -c 'echo 0 >/proc/sys/user/max_user_namespaces && exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'`))
	full := sshd.Start(t, forced(t, `HOME=/proc XDG_CACHE_HOME= exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"`))
	for name, tt := range map[string]struct {
		config, host string
		want         []string
	}{
		"no login":      {changed("IdentityFile", "IdentityFile /nowhere #"), sshd.Host, []string{sshd.Host, "Permission denied", "authorized_keys"}},
		"host key":      {changed("known_hosts", "nowhere"), sshd.Host, []string{sshd.Host, "ey verification failed", "accept it"}},
		"no server":     {s.Config, "ssh://127.0.0.1:1", []string{"127.0.0.1", "Connection refused"}},
		"architecture":  {other.Config, sshd.Host, []string{sshd.Host, "s390x"}},
		"no namespaces": {bare.Config, sshd.Host, []string{sshd.Host, "ssh", "user.max_user_namespaces"}},
		"no folder":     {full.Config, sshd.Host, []string{sshd.Host, "/proc"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := backend(t, tt.config, tt.host).Check(t.Context())
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("no %q: %v", want, err)
				}
			}
		})
	}
	if err := backend(t, s.Config).Check(t.Context()); !errors.Is(err, sandboxes.ErrNotAsked) || !strings.Contains(err.Error(), "--ssh") {
		t.Errorf("no hosts: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := backend(t, s.Config, sshd.Host).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "openssh-client") {
		t.Errorf("no ssh: %v", err)
	}
}

func TestHostsAreRefusedByName(t *testing.T) {
	for _, name := range []string{"", "-oProxyCommand=x", "a b", "a;b", "a\nb", "$(x)", "a'b"} {
		if _, err := newBackend(sandboxes.SSH{Hosts: []string{name}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := newBackend(sandboxes.SSH{Hosts: []string{"a", "a"}}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("one host twice: %v", err)
	}
	for _, name := range []string{"a", "me@host.example", "ssh://me@host:22", "ssh://[::1]:22", "fe80::1%eth0"} {
		if err := ssh.CheckHost(name); err != nil {
			t.Error(err)
		}
	}
}

// TestSettingsAreRefusedByName: no connection is made for them.
func TestSettingsAreRefusedByName(t *testing.T) {
	b := backend(t, "/nowhere", "ssh://127.0.0.1:1")
	sandboxtest.RefusesByName(t, b)
}

// TestAStrictLimitIsRefusedByName: an ordinary user there cannot limit the memory.
func TestAStrictLimitIsRefusedByName(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("SKIPPED: root can limit the memory")
	}
	b := backend(t, sshd.Start(t).Config, sshd.Host)
	s := spec()
	s.MemoryBytes = 1 << 30
	var noted string
	s.Note = func(limit, _ string) { noted = limit }
	sandboxtest.Create(t, b, s)
	if noted != "memory_bytes" {
		t.Errorf("noted %q", noted)
	}
	s.Strict, s.Attempt = []string{"memory_bytes"}, 2
	_, err := b.Create(t.Context(), s)
	var no *sandboxes.UnsupportedError
	if !errors.As(err, &no) || no.Field != "sandbox.memory_bytes" || !strings.Contains(no.Reason, sshd.Host) {
		t.Errorf("got %v", err)
	}
}

// TestFilesTravelOnce: turngate and the folder of an agent are in the cache folder
// of the host after the first sandbox, also for another worker.
func TestFilesTravelOnce(t *testing.T) {
	s := sshd.Start(t)
	dir := t.TempDir()
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "bin", "empty"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "bin", "hello"), []byte("#!/bin/sh\necho hello\n"), 0o755))
	harness.Must(t, os.Symlink("bin/hello", filepath.Join(dir, "link")))
	for i, want := range []int{2, 0, 1} {
		if i == 2 {
			harness.Must(t, os.WriteFile(filepath.Join(dir, "another"), []byte("x"), 0o644))
		}
		var log []string
		sp := spec()
		sp.Mounts = []sandboxes.Mount{{Host: dir, Guest: "/opt/agent"}}
		sp.Log = func(line string) { log = append(log, line) }
		sb := sandboxtest.Create(t, backend(t, s.Config, sshd.Host), sp)
		if got := sandboxtest.Output(t, sb, `/opt/agent/link; ls /opt/agent/bin; touch /opt/agent/x 2>/dev/null || echo read-only`); got != "hello\nempty\nhello\nread-only\n" {
			t.Errorf("sandbox %d: %q", i, got)
		}
		harness.Must(t, sb.Close(t.Context()))
		if len(log) != want {
			t.Errorf("sandbox %d: %d things travelled, want %d: %q", i, len(log), want, log)
		}
	}
	entries, err := os.ReadDir(filepath.Join(s.Cache, "turngate", "ssh"))
	harness.Must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "new") {
			t.Errorf("left: %s", e.Name())
		}
	}
	if info, err := os.Stat(filepath.Join(s.Cache, "turngate", "ssh")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder: %v, %v", info.Mode(), err)
	}
}

// TestAHostThatIsAwayIsPassedOver: the sandboxes are divided among the others.
func TestAHostThatIsAwayIsPassedOver(t *testing.T) {
	s := sshd.Start(t)
	b := backend(t, s.Config, "ssh://127.0.0.1:1", sshd.Host)
	sb := sandboxtest.Create(t, b, spec())
	if got := sandboxtest.Output(t, sb, "echo here"); got != "here\n" {
		t.Errorf("got %q", got)
	}
}

// TestALoginShellMaySpeak: its greeting is no answer.
func TestALoginShellMaySpeak(t *testing.T) {
	for _, greeting := range []string{`Welcome. You have mail.\n`, `Welcome. `, `\033]0;build1\007\033[1;32m`} {
		s := sshd.Start(t, forced(t, `printf '`+greeting+`'; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"`))
		harness.Must(t, backend(t, s.Config, sshd.Host).Check(t.Context()))
	}
	endless := sshd.Start(t, forced(t, `exec yes`))
	if err := backend(t, endless.Config, sshd.Host).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "login shell") {
		t.Errorf("endless: %v", err)
	}
}
