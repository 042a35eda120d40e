package jobs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/jobs"
)

// TestRemove removes a job that no process uses. It keeps what links in its folder lead to,
// and every folder that is no job.
func TestRemove(t *testing.T) {
	outside := t.TempDir()
	kept := filepath.Join(outside, "kept")
	harness.Must(t, os.WriteFile(kept, nil, 0o600))
	j := create(t, plan(t, 1, "a"))
	harness.Must(t, os.Symlink(outside, filepath.Join(j.Dir, "link")))
	harness.Must(t, os.MkdirAll(filepath.Join(j.Dir, "trial", "agent"), 0o755))
	if err := jobs.Remove(j.Dir); !errors.Is(err, jobs.ErrInUse) {
		t.Errorf("a job in use: %v", err)
	}
	if _, err := os.Stat(filepath.Join(j.Dir, "trial")); err != nil {
		t.Errorf("a job in use lost its files: %v", err)
	}
	j.Close()
	link := filepath.Join(outside, "job")
	harness.Must(t, os.Symlink(j.Dir, link))
	for _, dir := range []string{outside, kept, link, filepath.Join(outside, "none"), filepath.Join(j.Dir, "trial")} {
		if err := jobs.Remove(dir); err == nil {
			t.Errorf("%s was removed", dir)
		}
	}
	if err := jobs.Remove(j.Dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(j.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the job: %v", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a file that a link leads to: %v", err)
	}
}

// TestTitles tells tasks of one name apart by their folders.
func TestTitles(t *testing.T) {
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Backend: "local", Attempts: 1}
	for _, dir := range []string{"/a/hello", "/a/hello2", "/b/one/x", "/b/two/x", "/c/alone"} {
		name := map[string]string{"x": "deep", "alone": "alone"}[filepath.Base(dir)]
		if name == "" {
			name = "hello"
		}
		harness.Must(t, p.AddTask("alpha", jobs.Task{Name: name, Dir: dir}))
	}
	titles := p.Titles()
	for i, want := range []string{"hello (hello)", "hello (hello2)", "deep (one/x)", "deep (two/x)", "alone"} {
		if got := titles[p.Trials[i].Rollout]; got != want {
			t.Errorf("%s: %q, want %q", p.Trials[i].Dir, got, want)
		}
	}
	if same := p.Namesakes(); len(same) != 2 || len(same["hello"]) != 2 || same["deep"][1] != "/b/two/x" {
		t.Errorf("namesakes: %v", same)
	}
}
