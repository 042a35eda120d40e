package docker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/dockerd"
	"github.com/turngate/turngate/internal/testenv/sshd"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

// remote returns a backend of the engine that the variables name, which must not have this
// host's files.
func remote(t *testing.T, helper string, d sandboxes.Docker) *docker.Backend {
	t.Helper()
	b, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: helper, StateDir: t.TempDir(), Docker: d}})
	harness.Must(t, err)
	t.Cleanup(b.Close)
	return b
}

// TestARemoteEngine runs the whole suite, and then an engine's own questions, on an engine
// without this host's files.
func TestARemoteEngine(t *testing.T) {
	testenv.Slow(t)
	e, helper := dockerd.Start(t), testenv.Binary(t)
	e.Use(t, e.Addr)
	t.Run("copies", func(t *testing.T) { copiesTravelOnce(t, e, helper) })
	t.Run("cut", func(t *testing.T) { cut(t, e, helper) })
	t.Run("ssh", func(t *testing.T) { overSSH(t, e, helper) })
	t.Run("mount", func(t *testing.T) {
		b := remote(t, helper, sandboxes.Docker{Mounts: []sandboxes.Mount{{Host: t.TempDir(), Guest: "/data"}}})
		_, err := b.Create(t.Context(), spec(e.Image))
		for _, err := range []error{err, b.Check(t.Context())} {
			var no *sandboxes.UnsupportedError
			if !errors.As(err, &no) || no.Field != "--docker-mount" {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("contract", func(t *testing.T) {
		testenv.Slow(t)
		b := remote(t, helper, sandboxes.Docker{})
		sandboxtest.Run(t, sandboxtest.Fixture{
			New:      func(*testing.T) sandboxes.Backend { return b },
			Spec:     sandboxes.Spec{Image: e.Image},
			Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: true, Users: true, Snapshots: true},
		})
	})
	if left := e.Docker(t, "ps", "-aq"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}

// copiesTravelOnce makes sandboxes of two workers at once, with a copy that a dead worker
// left without its end.
func copiesTravelOnce(t *testing.T, e *dockerd.Engine, helper string) {
	packages := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(packages, "program"), []byte("#!/bin/sh\necho of the packages\n"), 0o755))
	harness.Must(t, os.Symlink("program", filepath.Join(packages, "link")))
	var mu sync.Mutex
	var said []string
	try := func(attempt int) string {
		s := spec(e.Image)
		s.Attempt, s.Mounts = attempt, []sandboxes.Mount{{Host: packages, Guest: sandboxes.AgentPath}}
		s.Log = func(line string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, line)
		}
		sb, err := remote(t, helper, sandboxes.Docker{}).Create(t.Context(), s)
		if err != nil {
			return err.Error()
		}
		defer func() { harness.Must(t, sb.Close(context.WithoutCancel(t.Context()))) }()
		return sandboxtest.Output(t, sb, sandboxes.AgentPath+"/link; touch "+sandboxes.AgentPath+"/x "+sandboxes.HelperPath+" 2>/dev/null || echo read-only")
	}
	if got := try(1); got != "of the packages\nread-only\n" {
		t.Fatalf("got %q", got)
	}
	if len(said) != 2 || !strings.HasPrefix(said[0], "turngate travels") || !strings.HasPrefix(said[1], packages+" travels") {
		t.Errorf("said %q", said)
	}
	volumes := strings.Fields(e.Docker(t, "volume", "ls", "-q", "--filter", "label=turngate.files"))
	if len(volumes) != 2 {
		t.Fatalf("the volumes %v", volumes)
	}
	for _, v := range volumes { // as a worker leaves them that died in the middle
		folder := e.Docker(t, "volume", "inspect", "--format", "{{.Mountpoint}}", v)
		harness.Must(t, os.Remove(e.Path(filepath.Join(folder, ".turngate-whole"))))
	}
	said = nil
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			if got := try(2 + i); got != "of the packages\nread-only\n" {
				t.Errorf("got %q", got)
			}
		})
	}
	all.Wait()
	if len(said) != 2 {
		t.Errorf("each volume is filled once, not as in %q", said)
	}
	b := remote(t, helper, sandboxes.Docker{})
	_, err := b.Sweep(t.Context(), "w1", func(schema.ID) bool { return false })
	harness.Must(t, err)
	if left := e.Docker(t, "volume", "ls", "-q"); len(strings.Fields(left)) != 2 {
		t.Errorf("volumes after a sweep: %q", left)
	}
	e.Docker(t, "create", "--name", "user", "--volume", volumes[0]+":/x", e.Image, "true")
	harness.Must(t, b.SweepFiles(t.Context(), -time.Minute))
	if left := e.Docker(t, "volume", "ls", "-q"); left != volumes[0] {
		t.Errorf("old volumes after a sweep: %q, want %s, which a container has", left, volumes[0])
	}
	e.Docker(t, "rm", "user")
}

// cut breaks the connections between a worker and its engine.
func cut(t *testing.T, e *dockerd.Engine, helper string) {
	proxy := testenv.NewProxy(t, e.Addr)
	e.Use(t, proxy.Addr())
	b := remote(t, helper, sandboxes.Docker{})
	sb, err := b.Create(t.Context(), spec(e.Image))
	harness.Must(t, err)
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"sleep", "3600"}})
	harness.Must(t, err)
	proxy.Cut()
	if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) || errors.Is(err, sandboxes.ErrKilled) || errors.Is(err, sandboxes.ErrMemory) {
		t.Errorf("got %v", err)
	}
	harness.Eventually(t, "the container is gone", time.Minute, func() bool { return e.Docker(t, "ps", "-aq") == "" })
	harness.Must(t, sb.Close(t.Context()))
}

// endThreads ends the threads of this process that do nothing, as starts of local
// sandboxes end some.
func endThreads() {
	var all, here sync.WaitGroup
	here.Add(50)
	for range 50 {
		all.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			here.Done()
			here.Wait()
		})
	}
	all.Wait()
}

// overSSH reaches the engine by OpenSSH.
func overSSH(t *testing.T, e *dockerd.Engine, helper string) {
	s := sshd.Start(t)
	program, err := exec.LookPath("ssh")
	harness.Must(t, err)
	bin := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(bin, "ssh"), []byte(fmt.Sprintf("#!/bin/sh\nexec '%s' -F '%s' \"$@\"\n", program, s.Config)), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("DOCKER_HOST", "ssh://"+sshd.Host+e.Socket)
	b := remote(t, helper, sandboxes.Docker{})
	harness.Must(t, b.Check(t.Context()))
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			spec := spec(e.Image)
			spec.Attempt = 20 + i
			sb, err := b.Create(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			var out bytes.Buffer
			p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"seq", "100000"}, Stdout: &out})
			harness.Must(t, err)
			endThreads()
			if exit, err := p.Wait(); err != nil || !exit.OK() || out.Len() != 588895 {
				t.Errorf("%d bytes, %v, %v", out.Len(), exit, err)
			}
			harness.Must(t, sb.Close(t.Context()))
		})
	}
	all.Wait()
}
