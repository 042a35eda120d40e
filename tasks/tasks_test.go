package tasks_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

func write(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const full = `
schema_version = "1.4"
[task]
name = "t $(touch x) \"q\""
[metadata]
anything = 1
[agent]
timeout_sec = 30.5
user = 1000
[verifier]
timeout_sec = 60
env = { KEY = "${SECRET}", URL = "${NO_SUCH:-fallback}", PLAIN = "a$b" }
user = "root"
[environment]
docker_image = "debian:12"
cpus = 1.5
memory_mb = 512
storage = "1G"
workdir = "/app"
allow_internet = false
surprise = true
[environment.healthcheck]
command = "test -e '/ready it' && echo $X"
retries = 2
[turngate]
setup = ["echo hi"]
`

func TestHarborTask(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{"instruction.md": "-- do\n'it'", "task.toml": full, "tests/test.sh": "#!/bin/sh\n", "environment/data.txt": "x"})
	given := tasks.Options{Env: map[string]string{"SECRET": "s3cret"}}
	task, err := tasks.Load(dir, given)
	if err != nil {
		t.Fatal(err)
	}
	r := task.Request
	if r.Task.Name != `t $(touch x) "q"` || r.Task.Instruction != "-- do\n'it'" || r.Agent.User != "1000" || r.Limits.AgentMS != 30_500 || r.Limits.VerifyMS != 60_000 {
		t.Errorf("got %+v", r)
	}
	s := r.Sandbox
	if s.Image != "debian:12" || s.CPUs != 1.5 || s.MemoryBytes != 512<<20 || s.DiskBytes != 1<<30 || s.Workdir != "/app" || s.Network != schema.NetworkNone {
		t.Errorf("got %+v", s)
	}
	if v := r.Verify; v == nil || v.Env["KEY"] != "s3cret" || v.Env["URL"] != "fallback" || v.Env["PLAIN"] != "a$b" || v.User != "root" {
		t.Errorf("got %+v", v)
	}
	if len(r.Setup) != 1 || r.Setup[0].Run != "echo hi" {
		t.Errorf("got %+v", r.Setup)
	}
	if h := r.Healthcheck; h == nil || h.Run != "test -e '/ready it' && echo $X" || h.Retries != 2 || h.WithDefaults().TimeoutMS != 30_000 {
		t.Errorf("got %+v", h)
	}
	if len(task.Warnings) != 1 || !strings.Contains(task.Warnings[0], "environment.surprise") {
		t.Errorf("got %v", task.Warnings)
	}
	again, err := tasks.Load(dir, given)
	if err != nil || !bytes.Equal(task.Bundle, again.Bundle) {
		t.Error("the same files make another bundle")
	}
}

func TestErrorsInATaskAreNamed(t *testing.T) {
	for field, files := range map[string]map[string]string{
		"instruction.md":           {"task.toml": ""},
		"task.toml":                {"instruction.md": "x", "task.toml": "["},
		"agent.timeout_sec":        {"instruction.md": "x", "task.toml": "[agent]\ntimeout_sec = -1"},
		"steps/a/instruction.md":   {"instruction.md": "x", "task.toml": "[[steps]]\nname = 'a'"},
		"environment.network_mode": {"instruction.md": "x", "task.toml": "[environment]\nnetwork_mode = 'host'"},
		"environment.memory": {
			"instruction.md": "x", "task.toml": "[environment]\nmemory = '4 elephants'"},
	} {
		_, err := tasks.Load(write(t, t.TempDir(), files), tasks.Options{})
		var bad *tasks.Error
		if !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if _, err := tasks.Load(filepath.Join(t.TempDir(), "none"), tasks.Options{}); err == nil {
		t.Error("a folder that is not there was loaded")
	}
}

// TestEverythingThatIsWrongIsSaidAtOnce loads a task with several mistakes. The
// error names all of them, so that an author can correct them in one go.
func TestEverythingThatIsWrongIsSaidAtOnce(t *testing.T) {
	_, err := tasks.Load(write(t, t.TempDir(), map[string]string{
		"instruction.md": " ", "tests/test.sh": "",
		"task.toml": "[agent]\ntimeout_sec = -1\n[environment]\nmemory = 'x'\nnetwork_mode = 'host'\n[verifier]\ntimeout_sec = 0",
	}), tasks.Options{})
	var fields []string
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range list.Unwrap() {
			var bad *tasks.Error
			if !errors.As(e, &bad) {
				t.Fatalf("got %v", e)
			}
			fields = append(fields, bad.Field)
		}
	}
	if got := strings.Join(fields, " "); got != "instruction.md environment.memory environment.network_mode agent.timeout_sec verifier.timeout_sec" {
		t.Errorf("got %q: %v", got, err)
	}
}

func TestBundleRoundTrip(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{"instruction.md": "x", "tests/test.sh": "#!/bin/sh\n", "tests/deep/data": "d", "solution/solve.sh": "s"})
	if err := os.Symlink("deep/data", filepath.Join(dir, "tests", "link")); err != nil {
		t.Fatal(err)
	}
	task, err := tasks.Load(dir, tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := tasks.Open(task.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	if !b.Has("tests") || !b.Has("tests/test.sh") || b.Has("environment") || b.Has("test") {
		t.Error("Has is wrong")
	}
	defer b.Close()
	if data, err := io.ReadAll(b.File("tests/deep/data")); err != nil || string(data) != "d" {
		t.Errorf("got %q, %v", data, err)
	}
	if b.File("tests/deep") != nil || b.File("tests/link") != nil || b.File("x") != nil {
		t.Error("File is wrong")
	}
}

func packed(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestBundlesThatLeaveTheirRootAreRefused(t *testing.T) {
	for name, h := range map[string]tar.Header{
		"dots":          {Name: "../x", Typeflag: tar.TypeReg},
		"absolute":      {Name: "/etc/passwd", Typeflag: tar.TypeReg},
		"absolute link": {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
		"link out":      {Name: "a/l", Typeflag: tar.TypeSymlink, Linkname: "../../etc"},
		"hard link":     {Name: "l", Typeflag: tar.TypeLink, Linkname: "x"},
		"device":        {Name: "d", Typeflag: tar.TypeChar},
	} {
		var bad *tasks.BundleError
		if _, err := tasks.Open(packed(t, h)); !errors.As(err, &bad) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	dir := write(t, t.TempDir(), map[string]string{"instruction.md": "x", "tests/test.sh": ""})
	if err := os.Symlink("/etc/shadow", filepath.Join(dir, "tests", "shadow")); err != nil {
		t.Fatal(err)
	}
	if _, err := tasks.Load(dir, tasks.Options{}); err == nil || !strings.Contains(err.Error(), "shadow") {
		t.Errorf("a link out of the task: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add(packed(f, tar.Header{Name: "tests/a", Typeflag: tar.TypeReg}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "tests"}))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := tasks.Open(data)
		if err != nil {
			return
		}
		defer b.Close()
		packed, err := b.Tar("tests")
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(packed); ; {
			_, err := r.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestRewardPrecedenceAndForms(t *testing.T) {
	for text, want := range map[string]float64{`{"reward":0.5,"x":2}`: 0.5, `{"x":2}`: 2} {
		if n, _, err := tasks.ParseRewardJSON([]byte(text), ""); err != nil || n == nil || *n != want {
			t.Errorf("%s: got %v, %v", text, n, err)
		}
	}
	if n, all, err := tasks.ParseRewardJSON([]byte(`{"a":1,"b":2}`), ""); err != nil || n != nil || all["a"] != 1 || all["b"] != 2 {
		t.Errorf("without a headline: got %v, %v, %v", n, all, err)
	}
	for _, text := range []string{`{}`, `[]`, `{"reward":"1"}`, `{"reward":null}`, "x"} {
		if n, _, err := tasks.ParseRewardJSON([]byte(text), ""); err == nil || strings.Contains(err.Error(), "Go value") {
			t.Errorf("%s: got %v, %v", text, n, err)
		}
	}
	if n, _, err := tasks.ParseRewardJSON([]byte(`{"a":1,"b":2}`), "b"); err != nil || n == nil || *n != 2 {
		t.Errorf("got %v, %v", n, err)
	}
	if n, _, err := tasks.ParseRewardJSON([]byte(`{"a":1,"b":2}`), "c"); err == nil {
		t.Errorf("a key without a number: got %v", n)
	}
	for text, ok := range map[string]bool{"1\n": true, " 0.25 ": true, "-1": true, "": false, "NaN": false, "inf": false, "1 2": false, "one": false} {
		if _, err := tasks.ParseRewardText([]byte(text)); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
