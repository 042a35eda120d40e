package regrade_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/regrade"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// keep makes a job with one rollout that left these artifacts, and returns it.
func keep(t *testing.T, artifacts map[string]string, change func(*schema.Result)) *recorded.Rollout {
	t.Helper()
	task := t.TempDir()
	for name, text := range map[string]string{"task.toml": "", "instruction.md": "Do it.\n", "tests/test.sh": "old\n", "solution/solve.sh": "own\n"} {
		harness.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(task, name)), 0o755))
		harness.Must(t, os.WriteFile(filepath.Join(task, name), []byte(text), 0o644))
	}
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Backend: "local", Attempts: 1, Parallel: 1, Flags: map[string][]string{}, Args: []string{"."}}
	harness.Must(t, p.AddTask("alpha", jobs.Task{Name: "t", Dir: task, Digest: "x"}))
	j, err := jobs.Create(filepath.Join(t.TempDir(), "j"), p)
	harness.Must(t, err)
	t.Cleanup(j.Close)
	one := 1.0
	r := schema.Result{V: schema.Version, ID: j.Plan.Trials[0].Rollout, Trainer: "alpha", Group: j.Plan.Trials[0].Group, Task: "t", Attempt: 1, Status: schema.StatusDone, Reward: &one, Separation: schema.SeparationSandbox}
	for name, text := range artifacts {
		sum := sha256.Sum256([]byte(text))
		r.Artifacts = append(r.Artifacts, schema.Artifact{Name: name, Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])})
	}
	if change != nil {
		change(&r)
	}
	harness.Must(t, j.Put(t.Context(), r, func(_ context.Context, a schema.Artifact, to io.Writer) error {
		_, err := io.WriteString(to, artifacts[a.Name])
		return err
	}))
	list, err := recorded.InJob(j.Dir)
	harness.Must(t, err)
	return list[0]
}

func TestReasonsForWhichARolloutIsLeftOut(t *testing.T) {
	ok := map[string]string{"manifest.json": `[{"source":"a","destination":"artifacts/a","type":"file","status":"ok"}]`, "a": "x"}
	with := func(manifest string) map[string]string { return map[string]string{"manifest.json": manifest, "a": "x"} }
	beside := func(entry string) map[string]string {
		return map[string]string{"manifest.json": `[` + entry + `,{"source":".","destination":"artifacts/agent-workdir","type":"directory","status":"ok"}]`, "a": "x", "agent-workdir.tar": "x"}
	}
	inSandbox := func(notes ...string) func(*schema.Result) {
		return func(r *schema.Result) { r.Separation, r.Notes = schema.SeparationOtherUser, notes }
	}
	for name, r := range map[string]*recorded.Rollout{
		"no such artifact":      keep(t, beside(`{"source":"/b","destination":"artifacts/b","type":"file","status":"failed"}`), inSandbox("the artifact /b was not kept: stat /b: file does not exist")),
		"in the working folder": keep(t, beside(`{"source":"a","destination":"artifacts/a","type":"file","status":"ok","exclude":["*.o"]}`), inSandbox()),
	} {
		if _, err := regrade.Of(r); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for want, r := range map[string]*recorded.Rollout{
		"its task has several steps":                                     keep(t, ok, func(r *schema.Result) { r.Steps = []schema.StepResult{{Name: "one"}} }),
		"it ended before it was verified":                                keep(t, ok, func(r *schema.Result) { r.Separation = "" }),
		"whose files were not kept: `turngate run --keep-workdir` keeps": keep(t, ok, func(r *schema.Result) { r.Separation = schema.SeparationOtherUser }),
		"were not kept (it is /, whose files": keep(t, ok, func(r *schema.Result) {
			r.Separation, r.Notes = schema.SeparationSameUser, []string{"the working directory was not kept: it is /, whose files are those of the image"}
		}),
		"its working directory was kept without ./big, ./b": keep(t, map[string]string{"manifest.json": `[{"source":".","destination":"artifacts/agent-workdir","type":"directory","status":"ok","exclude":["./big","./b"]}]`, "agent-workdir.tar": "x"}, func(r *schema.Result) {
			r.Separation = schema.SeparationOtherUser
		}),
		"its verifier ran in the agent's sandbox, and its artifact /a was kept without *.o": keep(t, beside(`{"source":"/a","destination":"artifacts/a","type":"file","status":"ok","exclude":["*.o"]}`), inSandbox()),
		"its verifier ran in the agent's sandbox, whose /b was not kept":                    keep(t, beside(`{"source":"/b","destination":"artifacts/b","type":"file","status":"failed"}`), inSandbox("the artifact /b was not kept: /b is larger than 67108864 bytes")),
		"its result has no artifact manifest.json":                                          keep(t, map[string]string{"a": "x"}, nil),
		"its manifest of artifacts cannot be read":                                          keep(t, with("{"), nil),
		`its artifact "/" is no path of its own`:                                            keep(t, with(`[{"source":"/","destination":"artifacts","type":"directory","status":"ok"}]`), nil),
		"its artifact /a was not kept: another one":                                         keep(t, with(`[{"source":"/a","destination":"artifacts/a","type":"file","status":"skipped"}]`), nil),
		"its artifact /a is of the service db":                                              keep(t, with(`[{"source":"/a","destination":"artifacts/a","type":"file","status":"ok","service":"db"}]`), nil),
		"its result has no artifact b.tar":                                                  keep(t, with(`[{"source":"/b","destination":"artifacts/b","type":"directory","status":"ok"}]`), nil),
		"its result has no artifact ../../a":                                                keep(t, with(`[{"source":"/a","destination":"artifacts/../../a","type":"file","status":"ok"}]`), nil),
	} {
		if _, err := regrade.Of(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	good := keep(t, ok, nil)
	at := filepath.Join(good.Job, good.Trial.Name, jobs.InputsDir, "a")
	if _, err := regrade.Of(good); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func() error{
		"was changed after the rollout": func() error { return os.WriteFile(at, []byte("y"), 0o600) },
		"is a link: want a file":        func() error { return os.Remove(at) },
	} {
		if strings.HasPrefix(want, "is a link") {
			harness.Must(t, change())
			harness.Must(t, os.Symlink("/etc/passwd", at))
		} else {
			harness.Must(t, change())
		}
		if _, err := regrade.Of(good); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		harness.Must(t, os.RemoveAll(at))
		harness.Must(t, os.WriteFile(at, []byte("x"), 0o600))
	}
	harness.Must(t, os.Remove(filepath.Join(good.Trial.Dir, "task.toml")))
	harness.Must(t, os.Remove(filepath.Join(good.Trial.Dir, "instruction.md")))
	if _, err := regrade.Of(good); err == nil || !strings.Contains(err.Error(), "the folder of its task is not there") {
		t.Errorf("got %v", err)
	}
}

// TestTheTaskOfARollout: the script puts files with odd names in their places, and
// removes the paths that the agent did not leave.
func TestTheTaskOfARollout(t *testing.T) {
	place := t.TempDir()
	odd := place + "/it's $(touch forged) `x`"
	manifest := `[{"source":"` + odd + `","destination":"artifacts/odd","type":"file","status":"ok"},{"source":"` + place + `/none","destination":"artifacts/none","type":"file","status":"failed"},` +
		`{"source":"` + place + `/empty","destination":"artifacts/empty","type":"directory","status":"empty"},{"source":"` + place + `/-f/run","destination":"artifacts/run","type":"file","status":"ok"}]`
	r, err := regrade.Of(keep(t, map[string]string{"manifest.json": manifest, "odd": "text", "run": "#!/bin/sh\n"}, nil))
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(place+"/none", []byte("x"), 0o600))
	harness.Must(t, os.MkdirAll(place+"/empty/x", 0o700))
	tests, dir := t.TempDir(), filepath.Join(t.TempDir(), "task")
	harness.Must(t, os.WriteFile(filepath.Join(tests, "test.sh"), []byte("new\n"), 0o755))
	harness.Must(t, r.Task(dir, tests))
	if data, err := os.ReadFile(filepath.Join(dir, "tests/test.sh")); err != nil || string(data) != "new\n" {
		t.Errorf("%q, %v", data, err)
	}
	script, err := os.ReadFile(filepath.Join(dir, "solution/solve.sh"))
	harness.Must(t, err)
	cmd := exec.Command("sh", "-c", strings.ReplaceAll(string(script), "/solution/", filepath.Join(dir, "solution")+"/"))
	cmd.Dir = place
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, script)
	}
	if data, err := os.ReadFile(odd); err != nil || string(data) != "text" {
		t.Errorf("%q, %v", data, err)
	}
	if info, err := os.Stat(place + "/-f/run"); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	left, err := filepath.Glob(place + "/*")
	if err != nil || len(left) != 3 {
		t.Errorf("%q, %v", left, err)
	}
	if inside, err := os.ReadDir(place + "/empty"); err != nil || len(inside) > 0 {
		t.Errorf("%v, %v", inside, err)
	}
	if err := r.Check(&schema.Result{Artifacts: r.Result.Artifacts}, t.TempDir()); err != nil {
		t.Error(err)
	}
	if err := r.Check(&schema.Result{}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "other files") {
		t.Errorf("got %v", err)
	}
	for _, stale := range []string{"none", "empty.tar"} {
		again := schema.Result{Artifacts: append(slices.Clip(r.Result.Artifacts), schema.Artifact{Name: stale})}
		if err := r.Check(&again, t.TempDir()); err == nil || !strings.Contains(err.Error(), "where it had none before") {
			t.Errorf("%s: got %v", stale, err)
		}
	}
}

// tarOf returns a tar with one file. hole is the size of a hole in it; 0: it has none.
func tarOf(t *testing.T, hole uint64) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	harness.Must(t, w.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o600, Format: tar.FormatGNU}))
	harness.Must(t, w.Close())
	head := b.Bytes()[:512]
	if hole > 0 { // the file is of GNU's old sparse kind
		number := func(at int, n uint64) {
			head[at] = 0x80
			binary.BigEndian.PutUint64(head[at+4:], n)
		}
		head[156] = 'S'
		number(386, hole) // where its only data begins, which are no bytes
		number(398, 0)
		number(483, hole) // its size
	}
	copy(head[148:156], "        ")
	sum := 0
	for _, c := range head {
		sum += int(c)
	}
	copy(head[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return b.String()
}

// TestATarWithAHugeHoleIsNoOtherTree: a comparison does not read holes, which can have any
// size.
func TestATarWithAHugeHoleIsNoOtherTree(t *testing.T) {
	const name = "d.tar"
	old := map[string]string{"manifest.json": `[{"source":"/d","destination":"artifacts/d","type":"directory","status":"ok"}]`, name: tarOf(t, 0)}
	r, err := regrade.Of(keep(t, old, nil))
	harness.Must(t, err)
	for hole, same := range map[uint64]bool{0: true, 1 << 50: false} {
		now, dir := tarOf(t, hole), t.TempDir()
		if same {
			now += strings.Repeat("\x00", 512) // other bytes, the same tree
		}
		at := filepath.Join(dir, jobs.InputsDir, name)
		harness.Must(t, os.MkdirAll(filepath.Dir(at), 0o700))
		harness.Must(t, os.WriteFile(at, []byte(now), 0o600))
		sum := sha256.Sum256([]byte(now))
		again := schema.Result{Artifacts: []schema.Artifact{{Name: name, SHA256: hex.EncodeToString(sum[:])}}}
		if err := r.Check(&again, dir); (err == nil) != same {
			t.Errorf("a hole of %d bytes: %v", hole, err)
		}
	}
}
