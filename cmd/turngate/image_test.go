package main_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
)

// TestImagesOfTasks builds the image of a task, lists it, and removes it and no
// other image.
func TestImagesOfTasks(t *testing.T) {
	pulled := testenv.Image(t)
	binary := testenv.Binary(t)
	unique := time.Now().Format(time.RFC3339Nano)
	build := func(name string) string {
		return task(t, map[string]string{"instruction.md": "x", "task.toml": "[task]\nname = \"test/" + name + "\"\n", "environment/Dockerfile": "FROM scratch\nCOPY f /f\n", "environment/f": name + unique})
	}
	one, other := build("one"), build("other")
	plain := task(t, map[string]string{"instruction.md": "x", "task.toml": "[environment]\ndocker_image = \"" + pulled + "\"\n"})
	state := func(args ...string) map[string]string {
		t.Helper()
		got := turngate(t, binary, append([]string{"image", "ls", "-o", "json"}, args...)...)
		var list []struct{ Ref, Kind, State string }
		if err := json.Unmarshal([]byte(got.out), &list); got.code != 0 || err != nil {
			t.Fatalf("%+v, %v", got, err)
		}
		out := map[string]string{}
		for _, i := range list {
			out[i.Ref] = i.Kind + " " + i.State
		}
		return out
	}
	if got := state(one, plain); len(got) != 2 || got[pulled] != "pull idle" && got[pulled] != "pull in use" {
		t.Fatalf("before the build: %v", got)
	}
	got := turngate(t, binary, "image", "build", one, other)
	if got.code != 0 || strings.Count(got.out, "\n") != 2 {
		t.Fatalf("%+v", got)
	}
	refs := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(got.out), "\n") {
		name, rest, _ := strings.Cut(line, "\t")
		refs[filepath.Base(name)], _, _ = strings.Cut(rest, "\t")
	}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", refs["one"], refs["other"]).Run() })
	if got := state(one); len(got) != 1 || got[refs["one"]] != "build idle" {
		t.Errorf("after the build: %v, want %s", got, refs["one"])
	}
	if got := state("--build-network", "none", one); len(got) != 1 || got[refs["one"]] != "" {
		t.Errorf("builds without a network have other images: %v", got)
	}
	got = turngate(t, binary, "image", "prune", one, plain)
	if got.code != 0 || !strings.Contains(got.out, "removed") || !strings.Contains(got.out, "kept") {
		t.Errorf("%+v", got)
	}
	if got := state(one, other); got[refs["one"]] != "build missing" || got[refs["other"]] != "build idle" {
		t.Errorf("after the removal: %v", got)
	}
	if err := exec.Command("docker", "image", "inspect", pulled).Run(); err != nil {
		t.Errorf("the pulled image: %v", err)
	}
	if got := turngate(t, binary, "image", "prune", other); got.code != 0 {
		t.Errorf("%+v", got)
	}
}

func TestArgumentsOfImagePrune(t *testing.T) {
	binary := testenv.Binary(t)
	good := task(t, map[string]string{"instruction.md": "x"})
	for want, args := range map[string][]string{
		"name tasks, or a bound": {"prune"},
		"exclude each other":     {"prune", "--unused-for", "1h", good},
		"--keep-images: -1":      {"prune", "--keep-images", "-1"},
		"no/such/dir":            {"prune", "/no/such/dir"},
		"--build-network":        {"ls", "--build-network", "far"},
		"no/such/task":           {"ls", "/no/such/task"},
	} {
		if got := turngate(t, binary, append([]string{"image"}, args...)...); got.code != 2 || !strings.Contains(got.errOut, want) {
			t.Errorf("%s: %+v", want, got)
		}
	}
}

// TestImagesArePulled: each pulled image has a line of output with the task, the image and the
// time; a missing one is an error on its own.
func TestImagesArePulled(t *testing.T) {
	pulled := testenv.Image(t)
	binary := testenv.Binary(t)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/v2/" {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
		}
	}))
	t.Cleanup(registry.Close)
	missing := strings.TrimPrefix(registry.URL, "http://") + "/none:1"
	names := func(image, name string) string {
		return task(t, map[string]string{"instruction.md": "x", "task.toml": "[task]\nname = " + name + "\n[environment]\ndocker_image = '" + image + "'\n"})
	}
	there, gone := names(pulled, `"org/bad\tname\u001b[2J\nof a task"`), names(missing, "'org/gone'")
	build := task(t, map[string]string{"instruction.md": "x", "environment/Dockerfile": "FROM scratch\n"})
	line := regexp.MustCompile(`^org/bad name \[2J of a task\t` + regexp.QuoteMeta(pulled) + `\t\d+\.\d s\n$`)
	if got := turngate(t, binary, "image", "pull", there, build); got.code != 0 || !line.MatchString(got.out) {
		t.Errorf("%+v", got)
	}
	got := turngate(t, binary, "image", "pull", "-j", "1", gone, there)
	if got.code != 1 || !line.MatchString(got.out) || !strings.Contains(got.errOut, "task org/gone: ") || !strings.Contains(got.errOut, missing) {
		t.Errorf("%+v", got)
	}
}
