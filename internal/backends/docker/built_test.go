package docker_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
)

// keeper is a backend with a repository of its own on the real engine, so that
// it sees and removes only the images of its test.
type keeper struct {
	*docker.Backend
	repo string
}

func newKeeper(t *testing.T, repo string, keep sandboxes.Keep) keeper {
	t.Helper()
	b, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: testenv.Binary(t), StateDir: t.TempDir(), Build: sandboxes.BuildLimits{Network: "none"}, Keep: keep}, Repo: repo})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	testenv.Need(t, "docker", b.Check(t.Context()))
	return keeper{b, repo}
}

// newRepo returns a repository that is emptied when the test ends.
func newRepo(t *testing.T) string {
	t.Helper()
	repo := fmt.Sprintf("turngate-test-keep-%d", time.Now().UnixNano())
	t.Cleanup(func() {
		out, err := exec.CommandContext(context.Background(), "docker", "images", "-q", repo).Output()
		for _, id := range strings.Fields(string(out)) {
			_ = exec.CommandContext(context.Background(), "docker", "rmi", "-f", id).Run()
		}
		if err != nil {
			t.Error(err)
		}
	})
	return repo
}

// make builds an image of a few bytes and returns its name.
func (k keeper) make(t *testing.T, how *sandboxes.Build) string {
	t.Helper()
	ref, err := k.Store().EnsureImage(t.Context(), "", how, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(ref, k.repo+":") {
		t.Fatalf("%s is not in %s", ref, k.repo)
	}
	return ref
}

func small(t *testing.T, task string) *sandboxes.Build {
	t.Helper()
	return &sandboxes.Build{Task: task, Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM scratch\nCOPY f /f\n", "f": task + " " + once()})}
}

func (k keeper) refs(t *testing.T) []string {
	t.Helper()
	all, err := k.Store().BuiltImages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, i := range all {
		out = append(out, i.Ref)
	}
	return out
}

func refsOf(list []sandboxes.BuiltImage) []string {
	var out []string
	for _, i := range list {
		out = append(out, i.Ref)
	}
	return out
}

func TestImagesWithTheOldestUseAreRemoved(t *testing.T) {
	backend(t)
	k := newKeeper(t, newRepo(t), sandboxes.Keep{})
	other := newKeeper(t, newRepo(t), sandboxes.Keep{})
	foreign := other.make(t, small(t, "foreign"))
	first, second, third := small(t, "first"), small(t, "second"), small(t, "third")
	refs := map[string]string{"first": k.make(t, first), "second": k.make(t, second), "third": k.make(t, third)}
	k.make(t, first) // used again: no build, and now the last one used
	want := []string{refs["first"], refs["third"], refs["second"]}
	if got := k.refs(t); !slices.Equal(got, want) {
		t.Fatalf("listed %v, want %v", got, want)
	}
	// A container, even one that never ran, protects its image.
	id, err := exec.Command("docker", "create", refs["second"], "none").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.CommandContext(context.Background(), "docker", "rm", "-f", strings.TrimSpace(string(id))).Run()
	})
	removed, err := k.Store().PruneImages(t.Context(), sandboxes.Keep{Images: 2})
	if got := refsOf(removed); err != nil || !slices.Equal(got, []string{refs["third"]}) {
		t.Fatalf("removed %v (%v), want the idle image with the oldest use", got, err)
	}
	all, err := k.Store().BuiltImages(t.Context())
	if err != nil || len(all) != 2 || all[0].InUse || !all[1].InUse || all[1].Task != "second" {
		t.Fatalf("left %+v, %v", all, err)
	}
	if gone, err := k.Store().RemoveBuilt(t.Context(), all[1]); err != nil || gone {
		t.Errorf("the image of a container was removed: %v, %v", gone, err)
	}
	if removed, err := k.Store().PruneImages(t.Context(), sandboxes.Keep{Age: time.Hour}); err != nil || len(removed) > 0 {
		t.Errorf("removed %v (%v), though all were used within the hour", refsOf(removed), err)
	}
	if removed, err := k.Store().PruneImages(t.Context(), sandboxes.Keep{Bytes: 1}); err != nil || !slices.Equal(refsOf(removed), []string{refs["first"]}) {
		t.Errorf("beyond one byte: removed %v, %v", refsOf(removed), err)
	}
	if got := other.refs(t); !slices.Equal(got, []string{foreign}) {
		t.Errorf("another repository has %v", got)
	}
}

// TestASweepSparesImagesOfTheLastMinutes checks that a worker's own bounds leave
// an image until its sandbox is made.
func TestASweepSparesImagesOfTheLastMinutes(t *testing.T) {
	backend(t)
	k := newKeeper(t, newRepo(t), sandboxes.Keep{Images: 1})
	k.make(t, small(t, "first"))
	k.make(t, small(t, "second")) // a sweep follows each build
	if got := k.refs(t); len(got) != 2 {
		t.Errorf("left %v, want both", got)
	}
}

func TestTheImagesOfABuildForSeveralTrainersHaveOneSharedName(t *testing.T) {
	_, image, _ := backend(t)
	k := newKeeper(t, newRepo(t), sandboxes.Keep{})
	how := &sandboxes.Build{Task: "cached", Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nRUN --mount=type=cache,target=/c echo " + once() + "\n"})}
	var want []string
	for _, trainer := range []string{"alpha", "beta"} {
		one := *how
		one.Trainer = trainer
		want = append(want, k.make(t, &one))
	}
	all, err := k.Store().BuiltImages(t.Context())
	if err != nil || len(all) != 2 || want[0] == want[1] {
		t.Fatalf("%v, %+v, %v", want, all, err)
	}
	for _, i := range all {
		shared, err := k.Store().BuildRef(how)
		if err != nil || i.Shared != shared || !slices.Contains(want, i.Ref) {
			t.Errorf("%+v: want the shared name %s, %v", i, shared, err)
		}
	}
}
