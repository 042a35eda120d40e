package docker_test

import (
	"errors"
	"testing"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// TestALinkOfTheImageLeadsNoMountToTheBox mounts folders through links of an
// image. A link to an ordinary folder works.
func TestALinkOfTheImageLeadsNoMountToTheBox(t *testing.T) {
	b, image, _ := backend(t)
	ref, said, err := ensure(t, withLimits(t, sandboxes.BuildLimits{}), &sandboxes.Build{Tar: buildFiles(t, map[string]string{
		"Dockerfile": "FROM " + image + "\nRUN ln -s /.turngate /top && ln -s /.turngate/turngate /deep && mkdir -p /plain && ln -s plain /fine # " + once() + "\n",
	})})
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	create := func(path string) (sandboxes.Sandbox, error) {
		s := spec(ref)
		s.Rollout = "places-1"
		s.Folders = []sandboxes.Folder{{Name: "shared"}}
		s.Container.Mounts = []schema.Mount{{Folder: "shared", Path: path}}
		return b.Create(t.Context(), s)
	}
	for _, path := range []string{"/top", "/top/turngate", "/top/run", "/deep"} {
		sb, err := create(path)
		var no *sandboxes.UnsupportedError
		if !errors.As(err, &no) || no.Field != "sandbox.container" {
			t.Errorf("%s: got %v", path, err)
		}
		if err == nil {
			_ = sb.Close(t.Context())
		}
	}
	sb, err := create("/fine/inner")
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, sb, "touch /plain/inner/x; ls /fine/inner"); got != "x" {
		t.Errorf("got %q", got)
	}
	if err := sb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, "turngate.rollout=places-1"); left != "" {
		t.Errorf("left: %s", left)
	}
}
