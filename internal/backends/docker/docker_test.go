package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

func backend(t *testing.T) (*docker.Backend, string, string) {
	t.Helper()
	image := testenv.Image(t)
	state := t.TempDir()
	b, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: testenv.Binary(t), StateDir: state}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	testenv.Need(t, "docker", b.Check(t.Context()))
	return b, image, state
}

func TestContract(t *testing.T) {
	testenv.Slow(t)
	b, image, _ := backend(t)
	sandboxtest.Run(t, sandboxtest.Fixture{
		New:      func(*testing.T) sandboxes.Backend { return b },
		Spec:     sandboxes.Spec{Image: image},
		Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: true, Users: true, Snapshots: true},
	})
	if left := ps(t, "label=turngate.owner=suite"); left != "" {
		t.Errorf("containers are left: %s", left)
	}
}

func ps(t *testing.T, filter string) string {
	t.Helper()
	out, err := exec.Command("docker", "ps", "-aq", "--filter", filter).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func spec(image string) sandboxes.Spec {
	return sandboxes.Spec{Owner: "w1", Rollout: "alpha-1", Attempt: 2, Image: image, Ready: time.Minute}
}

func TestContainerIsFencedAndNamed(t *testing.T) {
	b, image, state := backend(t)
	s := spec(image)
	s.MemoryBytes, s.CPUs, s.Pids = 256<<20, 0.5, 50
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	data, err := exec.Command("docker", "inspect", "turngate-w1-alpha-1-2").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []struct {
		Config     struct{ Labels map[string]string }
		HostConfig struct {
			NetworkMode                  string
			SecurityOpt, CapAdd, CapDrop []string
			Memory, MemorySwap, NanoCpus int64
			PidsLimit                    int64
			Privileged                   bool
		}
		Mounts []struct{ RW bool }
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	h := got[0].HostConfig
	if h.NetworkMode != "none" || h.Privileged || h.Memory != 256<<20 || h.MemorySwap != h.Memory || h.NanoCpus != 5e8 || h.PidsLimit != 50+box.Threads ||
		strings.Join(h.SecurityOpt, " ") != "no-new-privileges" || strings.Join(h.CapDrop, " ") != "ALL" {
		t.Errorf("got %+v", h)
	}
	for _, m := range got[0].Mounts {
		if m.RW {
			t.Error("a mount is writable")
		}
	}
	for k, want := range map[string]string{"turngate.owner": "w1", "turngate.rollout": "alpha-1", "turngate.attempt": "2"} {
		if got[0].Config.Labels[k] != want {
			t.Errorf("label %s=%q", k, got[0].Config.Labels[k])
		}
	}
	left, err := filepath.Glob(filepath.Join(state, "docker", "*", "*"))
	if err != nil || len(left) > 0 || bytes.Contains(data, []byte("secret")) {
		t.Errorf("the secret's folder still has %v", left)
	}
}

func TestAContainerOfADeadWorkerIsReplaced(t *testing.T) {
	b, image, _ := backend(t)
	old, err := b.Create(t.Context(), spec(image))
	if err != nil {
		t.Fatal(err)
	}
	sb, err := b.Create(t.Context(), spec(image))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := old.Start(t.Context(), sandboxes.Cmd{Args: []string{"true"}}); !errors.Is(err, sandboxes.ErrLost) {
		t.Errorf("the old one still works: %v", err)
	}
	for _, s := range []sandboxes.Sandbox{old, sb} {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestMissingImage(t *testing.T) {
	b, _, state := backend(t)
	_, err := b.Create(t.Context(), spec("turngate-no-such-image:1"))
	var bad *sandboxes.ImageError
	if !errors.As(err, &bad) {
		t.Fatalf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(state, "docker", "*")); len(left) > 0 || ps(t, "label=turngate.rollout=alpha-1") != "" {
		t.Errorf("left behind: %v", left)
	}
}

func TestDiskLimitIsEnforcedOrRefusedByName(t *testing.T) {
	b, image, _ := backend(t)
	s := spec(image)
	s.DiskBytes, s.Strict = 1<<30, []string{schema.LimitDisk}
	sb, err := b.Create(t.Context(), s)
	if err == nil {
		_ = sb.Close(t.Context())
		return // this engine's storage enforces the limit
	}
	var no *sandboxes.UnsupportedError
	if !errors.As(err, &no) || no.Field != "sandbox.disk_bytes" {
		t.Fatalf("got %v", err)
	}
	if ps(t, "label=turngate.rollout=alpha-1") != "" {
		t.Error("a container is left")
	}
}

func TestConcurrentBuildsOfOneContextShareOne(t *testing.T) {
	b, image, _ := backend(t)
	unique := time.Now().Format(time.RFC3339Nano)
	context := buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nWORKDIR /app\nENV MADE='" + unique + "'\nRUN date +%N > /stamp\n"})
	var wg sync.WaitGroup
	stamps := make([]string, 3)
	for i := range stamps {
		wg.Go(func() {
			s := spec("")
			s.Build, s.Attempt = &sandboxes.Build{Tar: context}, i+1
			sb, err := b.Create(t.Context(), s)
			if err != nil {
				t.Error(err)
				return
			}
			defer sb.Close(t.Context()) //nolint:errcheck // checked elsewhere
			if sb.Workdir() != "/app" {
				t.Errorf("workdir %s", sb.Workdir())
			}
			data, err := sandboxes.ReadFile(t.Context(), sb.Files(), "/stamp", 100)
			if err != nil {
				t.Error(err)
			}
			stamps[i] = string(data)
		})
	}
	wg.Wait()
	if stamps[0] == "" || stamps[0] != stamps[1] || stamps[1] != stamps[2] {
		t.Errorf("stamps %q", stamps)
	}
	_, err := b.Create(t.Context(), sandboxes.Spec{Owner: "w1", Rollout: "alpha-1", Build: &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nRUN echo why; false # " + unique + "\n"})}})
	var bad *sandboxes.ImageError
	if !errors.As(err, &bad) || !strings.Contains(bad.Reason, "why") {
		t.Errorf("a build that fails: %v", err)
	}
}

func TestTheImagesUserOwnsTheFilesPutIn(t *testing.T) {
	b, image, _ := backend(t)
	s := spec("")
	s.Build = &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nRUN useradd --uid 4321 dev\nUSER dev\nCMD [\"serve\"]\n"})}
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	if argv := sb.Argv(); len(argv) > 0 {
		t.Errorf("the image's command is to run, and nobody asked for it: %q", argv)
	}
	if err := sb.Files().Write(t.Context(), "/data/x", strings.NewReader("x"), 0o600, ""); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"sh", "-c", "id -u; stat -c %u /data/x /data; pwd; touch here && cat /data/x"}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(); err != nil || !exit.OK() || out.String() != "4321\n4321\n4321\n/workspace\nx" {
		t.Fatalf("%s %v\n%s", exit, err, out.String())
	}
}

func TestNetworkIsOpenOnlyWhenAsked(t *testing.T) {
	b, image, _ := backend(t)
	for network, want := range map[string]bool{"": false, "none": false, "open": true} {
		s := spec(image)
		s.Network = network
		sb, err := b.Create(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		data, err := sandboxes.ReadFile(t.Context(), sb.Files(), "/proc/net/route", 1<<20)
		if err != nil {
			t.Error(err)
		}
		if has := bytes.Contains(data, []byte("eth0")); has != want {
			t.Errorf("network %q: a route out %v, want %v", network, has, want)
		}
		if err := sb.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s := spec(image)
	s.Network = "allowlist"
	_, err := b.Create(t.Context(), s)
	var no *sandboxes.UnsupportedError
	if !errors.As(err, &no) || no.Field != "sandbox.network" {
		t.Errorf("allowlist: %v", err)
	}
}

func TestADynamicHelperIsRefused(t *testing.T) {
	b, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: "/bin/sh", StateDir: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "static") {
		t.Fatalf("got %v", err)
	}
}

// TestAUserWithoutAnEntry: it has the HOME that Docker gives it, which it cannot write.
func TestAUserWithoutAnEntry(t *testing.T) {
	b, image, _ := backend(t)
	s := spec("")
	s.Build = &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nUSER 1234\n"})}
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	var out bytes.Buffer
	p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"sh", "-c", `echo "$(id -u) $HOME"; test -w "$HOME" || echo no`}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	if exit, err := p.Wait(); err != nil || !exit.OK() || out.String() != "1234 /\nno\n" {
		t.Fatalf("%s %v\n%s", exit, err, out.String())
	}
	home, err := exec.CommandContext(t.Context(), "docker", "run", "--rm", "--network", "none", "--user", "1234", image, "sh", "-c", `echo "$HOME"`).CombinedOutput()
	if err != nil || string(home) != "/\n" {
		t.Errorf("Docker's HOME is %q, %v", home, err)
	}
}
