package docker_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// copies lists the images of the snapshots of an owner.
func copies(t *testing.T, owner string) []string {
	t.Helper()
	out, err := exec.Command("docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "label=turngate.snapshot="+owner).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

func TestASnapshotOfADeadWorkerIsSwept(t *testing.T) {
	b, image, state := backend(t)
	s := spec(image)
	s.Owner = "snapshots"
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	if _, err := sb.Snapshot(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	names := copies(t, "snapshots")
	if len(names) != 1 {
		t.Fatalf("the engine has the snapshots %q", names)
	}
	all, err := b.Images(t.Context())
	if err != nil || slices.Contains(all, names[0]) {
		t.Errorf("the worker offers %s, %v", names, err)
	}
	// This process made it, so its own sweep spares it. A later process removes it.
	later, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: testenv.Binary(t), StateDir: state}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(later.Close)
	for _, c := range []struct {
		by    *docker.Backend
		owner string
		left  int
	}{{b, "snapshots", 1}, {later, "another", 1}, {later, "snapshots", 0}} {
		if _, err := c.by.Sweep(t.Context(), c.owner, func(schema.ID) bool { return false }); err != nil {
			t.Fatal(err)
		}
		if left := copies(t, "snapshots"); len(left) != c.left {
			t.Errorf("after a sweep for %s the engine has %q", c.owner, left)
		}
	}
}

func TestSandboxesThatCannotBeCopied(t *testing.T) {
	b, image, _ := backend(t)
	for reason, change := range map[string]func(*sandboxes.Spec){
		"tmpfs": func(s *sandboxes.Spec) { s.Container.Tmpfs = []schema.Tmpfs{{Path: "/fast"}} },
		"shared folders": func(s *sandboxes.Spec) {
			s.Folders = []sandboxes.Folder{{Name: "data"}}
			s.Container.Mounts = []schema.Mount{{Folder: "data", Path: "/data"}}
		},
		"side-cars": func(s *sandboxes.Spec) {
			s.Services = []sandboxes.Service{{Name: "db", Spec: sandboxes.Spec{Image: image}}}
		},
	} {
		s := spec(image)
		s.Owner = "uncopied"
		change(&s)
		sb, err := b.Create(t.Context(), s)
		if err != nil {
			t.Fatalf("%s: %v", reason, err)
		}
		_, err = sb.Snapshot(t.Context(), 0)
		var no *sandboxes.UnsupportedError
		if !errors.As(err, &no) || !strings.Contains(no.Reason, reason) {
			t.Errorf("%s: got %v", reason, err)
		}
		if err := sb.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestASnapshotIsNoImageOfARequest(t *testing.T) {
	b, image, _ := backend(t)
	s := spec(image)
	s.Owner = "secret"
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	made, err := sb.Snapshot(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	name := copies(t, "secret")[0]
	id, err := exec.Command("docker", "image", "inspect", "-f", "{{.Id}}", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	whole := strings.TrimSpace(string(id))
	short := strings.TrimPrefix(whole, "sha256:")[:12]
	for _, ref := range []string{name, whole, short, "sha256:" + short} {
		s := spec(ref)
		s.Rollout = "alpha-2"
		other, err := b.Create(t.Context(), s)
		if err == nil {
			t.Errorf("%s: a sandbox has the files of the snapshot", ref)
			_ = other.Close(t.Context())
		}
		var no *sandboxes.ImageError
		if !errors.As(err, &no) {
			t.Errorf("%s: got %v", ref, err)
		}
	}
	// The base image has no container once the first sandbox is closed.
	if err := sb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Snapshot(t.Context(), 0); err == nil {
		t.Error("a closed sandbox was copied")
	}
}

func TestASnapshotHasABound(t *testing.T) {
	b, image, _ := backend(t)
	s := spec(image)
	s.Owner = "large"
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	if err := sb.Files().Write(t.Context(), "/big", bytes.NewReader(make([]byte, 3<<20)), 0o644, ""); err != nil {
		t.Fatal(err)
	}
	_, err = sb.Snapshot(t.Context(), 2<<20)
	var no *sandboxes.UnsupportedError
	if !errors.As(err, &no) || !strings.Contains(no.Reason, "copies at most 2") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the rollout was cancelled")
	cancel(gone)
	if _, err := sb.Snapshot(ctx, 0); err == nil {
		t.Error("a cancelled rollout has a snapshot")
	}
	if left := copies(t, "large"); len(left) > 0 {
		t.Errorf("images are left: %q", left)
	}
}

// TestACopyThatOutlastsItsRolloutIsRemoved: a cancelled rollout does not wait for the
// engine, which makes the image nevertheless.
func TestACopyThatOutlastsItsRolloutIsRemoved(t *testing.T) {
	_, image, _ := backend(t)
	copying, release, made := make(chan struct{}), make(chan struct{}), make(chan struct{})
	throughProxy(t, func(mux *http.ServeMux, engine http.Handler) {
		mux.HandleFunc("/{version}/commit", func(w http.ResponseWriter, r *http.Request) {
			close(copying)
			<-release
			engine.ServeHTTP(w, r)
			close(made)
		})
	})
	b, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: testenv.Binary(t), StateDir: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	s := spec(image)
	s.Owner = "outlasted"
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the rollout was cancelled")
	go func() {
		<-copying
		cancel(gone)
	}()
	if s, err := sb.Snapshot(ctx, 0); !errors.Is(err, gone) || s != nil {
		t.Fatalf("got %v, %v", s, err)
	}
	close(release)
	<-made
	harness.Eventually(t, "the removal of the image", 5*time.Minute, func() bool { return len(copies(t, "outlasted")) == 0 })
}
