package tasks_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/tasks"
)

// TestNoFileOutsideATaskIsRead puts a link that leaves the task, a FIFO, a device
// and a sparse file of 300 GB at every place at which a file of a task is read.
// Each is refused by name, at once: a reader that opens the FIFO waits for ever.
func TestNoFileOutsideATaskIsRead(t *testing.T) {
	const private = "PRIVATE-KEY-OF-THE-SUBMITTER"
	places := []string{
		"instruction.md", "task.toml", "tests/test.sh", "tests/deep/data", "solution/solve.sh", "environment/Dockerfile", "environment/docker-compose.yaml",
		"environment/.env", "environment/x.env", "environment/bound", "steps/s/instruction.md", "steps/s/tests/test.sh",
		"tests", "environment", "solution", "steps", "steps/s",
	}
	kinds := map[string]func(at, outside string) error{
		"a link out":      func(at, outside string) error { return os.Symlink(outside, at) },
		"a relative link": func(at, outside string) error { return os.Symlink(relative(at, outside), at) },
		"a link to a link": func(at, outside string) error {
			return errors.Join(os.Symlink(outside, at+".1"), os.Symlink(filepath.Base(at)+".1", at))
		},
		"a FIFO": func(at, _ string) error { return unix.Mkfifo(at, 0o600) },
		"a link to a FIFO": func(at, _ string) error {
			return errors.Join(unix.Mkfifo(at+".1", 0o600), os.Symlink(filepath.Base(at)+".1", at))
		},
		"a socket":          func(at, _ string) error { return unix.Mknod(at, unix.S_IFSOCK|0o600, 0) },
		"a link to /dev":    func(at, _ string) error { return os.Symlink("/dev/zero", at) },
		"a file of 300 GB":  func(at, _ string) error { return errors.Join(os.WriteFile(at, nil, 0o600), os.Truncate(at, 300<<30)) },
		"a link to a procf": func(at, _ string) error { return os.Symlink("/proc/self/environ", at) },
	}
	for kind, put := range kinds {
		for _, place := range places {
			if strings.Contains(kind, "GB") && !strings.Contains(filepath.Base(place), ".") && filepath.Base(place) != "Dockerfile" && filepath.Base(place) != "data" && filepath.Base(place) != "bound" {
				continue // a large file is no folder
			}
			t.Run(kind+" at "+place, func(t *testing.T) {
				parent := t.TempDir()
				outside := filepath.Join(parent, "id_rsa")
				dir := write(t, filepath.Join(parent, "t"), whole())
				if err := os.WriteFile(outside, []byte(private), 0o600); err != nil {
					t.Fatal(err)
				}
				at := filepath.Join(dir, place)
				if err := errors.Join(os.RemoveAll(at), put(at, outside)); err != nil {
					t.Fatal(err)
				}
				if place == "task.toml" && !tasks.IsTask(dir) {
					t.Error("it is not seen as a task")
				}
				_ = tasks.Name(dir)
				task, err := tasks.Load(dir, tasks.Options{})
				if err == nil {
					t.Fatalf("it was loaded: %+v", task.Request)
				}
				if name := strings.Split(place, "/"); !strings.Contains(err.Error(), name[len(name)-1]) || strings.Contains(err.Error(), private) {
					t.Errorf("the error does not name the file: %v", err)
				}
				if place == "task.toml" || place == "instruction.md" {
					if _, err := jobs.Digest(dir, nil); err == nil || !strings.Contains(err.Error(), place) {
						t.Errorf("the digest: %v", err)
					}
				}
			})
		}
	}
}

func relative(at, outside string) string {
	rel, err := filepath.Rel(filepath.Dir(at), outside)
	if err != nil {
		return outside
	}
	return rel
}

// whole is a task with a file at each place at which one is read.
func whole() map[string]string {
	return map[string]string{
		"instruction.md": "x", "task.toml": "[[steps]]\nname = 's'\n", "tests/test.sh": "", "tests/deep/data": "", "solution/solve.sh": "", "environment/Dockerfile": "FROM x",
		"environment/.env": "A=b", "environment/x.env": "C=d", "environment/bound": "", "steps/s/instruction.md": "x", "steps/s/tests/test.sh": "",
		"environment/docker-compose.yaml": "services:\n  main:\n    env_file: x.env\n    volumes: ['./bound:/bound']\n    environment: ['A=${A}']\n",
	}
}

func TestReplayScriptOfATask(t *testing.T) {
	files := whole()
	files["replay.yaml"] = "steps:\n- text: hi\n"
	dir := write(t, t.TempDir(), files)
	task, err := tasks.Load(dir, tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := task.ReplayScript(); err != nil || string(data) != files["replay.yaml"] {
		t.Errorf("got %q, %v", data, err)
	}
	at := filepath.Join(dir, "replay.yaml")
	if err := errors.Join(os.Remove(at), unix.Mkfifo(at, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := task.ReplayScript(); err == nil || !strings.Contains(err.Error(), "replay.yaml: it is a FIFO") {
		t.Errorf("a FIFO: %v", err)
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if data, err := task.ReplayScript(); err != nil || data != nil {
		t.Errorf("without one: %q, %v", data, err)
	}
}

// TestLinksInsideATaskAreFollowed: public tasks have them.
func TestLinksInsideATaskAreFollowed(t *testing.T) {
	files := whole()
	files["texts/instruction.md"] = "the text"
	dir := write(t, t.TempDir(), files)
	at := filepath.Join(dir, "instruction.md")
	if err := errors.Join(os.Remove(at), os.Symlink("texts/instruction.md", at), os.Symlink("test.sh", filepath.Join(dir, "tests/again.sh"))); err != nil {
		t.Fatal(err)
	}
	task, err := tasks.Load(dir, tasks.Options{})
	if err != nil || task.Request.Task.Instruction != "the text" {
		t.Errorf("got %v, %v", task, err)
	}
}

// TestTheFilesOfATaskHaveABound: workers would refuse the bundle.
func TestTheFilesOfATaskHaveABound(t *testing.T) {
	files := whole()
	dir := write(t, t.TempDir(), files)
	for name, size := range map[string]int64{"tests/a": 1, "tests/b": 4 << 30} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tasks.Load(dir, tasks.Options{}); err == nil || !strings.Contains(err.Error(), "tests/b has 4294967296 bytes") {
		t.Errorf("got %v", err)
	}
}
