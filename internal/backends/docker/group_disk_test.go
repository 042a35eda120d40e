package docker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// TestAllContainersOfASandboxShareItsDiskLimit checks that each container has a
// part of the limit, and that a folder counts towards the part of one container.
func TestAllContainersOfASandboxShareItsDiskLimit(t *testing.T) {
	b, image, _ := backend(t)
	s := spec(image)
	s.Rollout, s.DiskBytes = "alpha-disk", 80<<20
	s.Folders = []sandboxes.Folder{{Name: "shared"}}
	mounts := func(at string) schema.Container {
		return schema.Container{Mounts: []schema.Mount{{Folder: "shared", Path: at}}}
	}
	s.Container = mounts("/shared")
	s.Services = []sandboxes.Service{{Name: "peer", Spec: sandboxes.Spec{Image: image, Container: mounts("/in")}}}
	s.Note = func(limit, text string) { // on engines without quotas
		if limit == schema.LimitDisk && (!strings.Contains(text, "disk_bytes: 83886080 ") || !strings.HasSuffix(text, "main may write 41943040 of them, peer 41943040")) {
			t.Errorf("the note is %q", text)
		}
	}
	sb, err := b.Create(t.Context(), s)
	harness.Must(t, err)
	t.Cleanup(func() { _ = sb.Close(context.WithoutCancel(t.Context())) })
	peer, err := sb.Service("peer")
	harness.Must(t, err)
	run := func(at sandboxes.Sandbox, script string) schema.Exit {
		t.Helper()
		p, err := at.Start(t.Context(), sandboxes.Cmd{Args: []string{"bash", "-c", script}, Timeout: 2 * time.Minute})
		harness.Must(t, err)
		exit, err := p.Wait()
		harness.Must(t, err)
		return exit
	}
	// Either part is 40 MiB, less than the limit of the sandbox.
	if exit := run(peer, "head -c 60M /dev/zero > /own; sleep 300"); !exit.Disk {
		t.Errorf("60 MiB of the side-car's own: %s", exit)
	}
	if exit := run(peer, "rm /own; head -c 60M /dev/zero > /in/large; sleep 3"); !exit.OK() {
		t.Errorf("60 MiB in a folder that counts towards main: %s", exit)
	}
	if exit := run(sb, "sleep 300"); !exit.Disk {
		t.Errorf("main with 60 MiB in its folder: %s", exit)
	}
}
