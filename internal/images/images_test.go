package images_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/images"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type engine func(ref string, how *sandboxes.Build) error

func (e engine) EnsureImage(_ context.Context, ref string, how *sandboxes.Build, log func(string)) (string, error) {
	log("at work")
	return "made", e(ref, how)
}

func task(t *testing.T, files map[string]string) *tasks.Task {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := tasks.Load(dir, tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTasksSayWhichImagesTheyNeed(t *testing.T) {
	built := task(t, map[string]string{"instruction.md": "x", "environment/Dockerfile": "FROM scratch\n"})
	pulled := task(t, map[string]string{"instruction.md": "x", "task.toml": "[environment]\ndocker_image = \"debian:12\"\n"})
	for kind, want := range map[string]*tasks.Task{images.Builds: built, images.Pulls: pulled} {
		for _, have := range []*tasks.Task{built, pulled} {
			bundle, err := tasks.Open(have.Bundle)
			if err != nil {
				t.Fatal(err)
			}
			defer bundle.Close()
			got, err := images.Of(have, bundle, kind)
			if err != nil || (len(got) == 1) != (have == want) {
				t.Errorf("%s: %+v %v", kind, got, err)
			}
			if len(got) == 1 && (got[0].Image == "debian:12") == (got[0].Build != nil) {
				t.Errorf("%s: %+v", kind, got[0])
			}
		}
	}
}

func TestWarmGoesOnAfterAFailure(t *testing.T) {
	bad := errors.New("no such image")
	var calls atomic.Int64
	e := engine(func(ref string, _ *sandboxes.Build) error {
		calls.Add(1)
		if ref == "b" {
			return bad
		}
		return nil
	})
	outcomes, lines := map[string]error{}, 0
	err := images.Warm(t.Context(), e, []images.Want{{Task: "1", Image: "a"}, {Task: "2", Image: "b"}, {Task: "3", Image: "c"}}, 2,
		func(o images.Outcome) { outcomes[o.Image] = o.Err }, func(images.Want, string) { lines++ })
	if !errors.Is(err, bad) || calls.Load() != 3 || lines != 3 || outcomes["a"] != nil || !errors.Is(outcomes["b"], bad) || outcomes["c"] != nil || len(outcomes) != 3 {
		t.Errorf("%v, %d calls, %d lines, %v", err, calls.Load(), lines, outcomes)
	}
}
