package docker_test

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/docker"
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
	if _, err := sb.Snapshot(t.Context()); err != nil {
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
		_, err = sb.Snapshot(t.Context())
		var no *sandboxes.UnsupportedError
		if !errors.As(err, &no) || !strings.Contains(no.Reason, reason) {
			t.Errorf("%s: got %v", reason, err)
		}
		if err := sb.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
