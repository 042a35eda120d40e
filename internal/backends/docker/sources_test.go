package docker_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// TestABuildDoesNotReachTheHostThroughADD serves a file on the host's loopback,
// where the engine could read it.
func TestABuildDoesNotReachTheHostThroughADD(t *testing.T) {
	_, image, _ := backend(t)
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("secret"))
	}))
	defer srv.Close()
	refused := func(t *testing.T, b *docker.Backend, file string) {
		t.Helper()
		_, said, err := ensure(t, b, &sandboxes.Build{Args: map[string]string{"URL": srv.URL + "/x"}, Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\n" + file + "\n"})})
		var bad *sandboxes.ImageError
		if !errors.As(err, &bad) || !strings.Contains(bad.Reason, "ADD ") {
			t.Errorf("%s: got %v\n%s", file, err, said)
		}
	}
	git := "ADD " + srv.URL + "/x.git#main /git"
	for _, network := range []string{schema.NetworkNone, schema.NetworkOpen} {
		b := withLimits(t, sandboxes.BuildLimits{Network: network})
		for _, file := range []string{"ADD " + srv.URL + "/x /x", "ARG URL\nADD $URL /x", git} {
			refused(t, b, file)
		}
	}
	oldEngine(t)
	b := withLimits(t, sandboxes.BuildLimits{})
	for _, file := range []string{
		"ADD " + srv.URL + "/x /x", "ARG URL\nADD $URL /x", git, `ADD ["` + srv.URL + `/x", "/x"]`, `ADD "ht"tp` + srv.URL[4:] + "/x /x", "ONBUILD ADD " + srv.URL + "/x /x",
	} {
		refused(t, b, file)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the host was asked %d times", n)
	}
}

// TestCachesOfBuildsBelongToATrainer reads a cache mount that another trainer's
// build has filled.
func TestCachesOfBuildsBelongToATrainer(t *testing.T) {
	_, image, _ := backend(t)
	b := withLimits(t, sandboxes.BuildLimits{})
	id := "id=" + strings.NewReplacer(":", "", ".", "", "+", "", "-", "").Replace(once())
	run := func(trainer, script string) string {
		t.Helper()
		_, said, err := ensure(t, b, &sandboxes.Build{
			Trainer: trainer, Args: map[string]string{"BUILDKIT_CACHE_MOUNT_NS": "chosen"},
			Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nRUN --mount=type=cache,target=/cache," + id + " " + script + "; echo found-$(cat /cache/x) # " + once() + "\n"}),
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		return said
	}
	run("one", "echo mine > /cache/x")
	if said := run("two", "true"); strings.Contains(said, "found-mine") {
		t.Errorf("another trainer's cache:\n%s", said)
	}
	if said := run("one", "true"); !strings.Contains(said, "found-mine") {
		t.Errorf("the cache was lost:\n%s", said)
	}
}

// TestABuildDoesNotBeginWithAnID: a request could try the first digits of all ids
// and build on another trainer's image. BuildKit reads names only.
func TestABuildDoesNotBeginWithAnID(t *testing.T) {
	_, image, _ := backend(t)
	out, err := exec.Command("docker", "image", "inspect", "-f", "{{.Id}}", image).Output()
	if err != nil {
		t.Fatal(err)
	}
	whole := strings.TrimSpace(string(out))
	short := strings.TrimPrefix(whole, "sha256:")[:12]
	files := []string{
		"FROM " + short, "FROM " + whole, "ARG B=" + short + "\nFROM $B", "ARG B\nFROM ${B}", "FROM ${NONE:-" + short + "}", "ARG B=" + short[:6] + "\nFROM ${B}" + short[6:],
		"FROM " + image + "\nCOPY --from=" + short + " /etc/hostname /x",
	}
	build := func(file string) error {
		_, _, err := ensure(t, withLimits(t, sandboxes.BuildLimits{}), &sandboxes.Build{Args: map[string]string{"B": short}, Tar: buildFiles(t, map[string]string{"Dockerfile": file + "\nRUN true " + once() + "\n"})})
		return err
	}
	for _, old := range []bool{false, true} {
		if old {
			oldEngine(t)
		}
		for _, file := range files {
			var bad *sandboxes.ImageError
			if err := build(file); !errors.As(err, &bad) {
				t.Errorf("old engine %v: %s: got %v", old, file, err)
			}
		}
	}
	if err := build("FROM " + image + " AS beef\nFROM beef\nCOPY --from=beef /etc/hostname /x\nCOPY --from=0 /etc/hostname /y"); err != nil {
		t.Errorf("stages: %v", err)
	}
}
