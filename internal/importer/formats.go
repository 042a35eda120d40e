package importer

import (
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// scripts are the same in every task of a format: they contain no text of a row.
//
//go:embed scripts
var scripts embed.FS

func script(name string) []byte {
	data, err := scripts.ReadFile("scripts/" + name)
	if err != nil {
		panic(err) // the file is embedded
	}
	return data
}

// swe makes a task of SWE-bench or SWE-smith. Its reward depends on named tests.
func (w *row) swe(t *task, format Format) {
	t.instruction = w.text(true, "problem_statement", "instruction")
	fail, pass := w.tests("FAIL_TO_PASS"), []string(nil)
	if w.has("PASS_TO_PASS") {
		pass = w.tests("PASS_TO_PASS")
	}
	if len(fail) == 0 {
		w.wrong("FAIL_TO_PASS", "[]", "want at least one test")
	}
	commit := w.text(false, "base_commit")
	if commit != "" && !regexp.MustCompile(`^[0-9a-fA-F]{7,64}$`).MatchString(commit) {
		w.wrong("base_commit", commit, "want a commit of 7 to 64 hex digits")
	}
	// The published images of SWE-bench have this name.
	id := strings.ReplaceAll(strings.ToLower(folder(t.name)), "__", "_1776_")
	image := w.image("swebench/sweb.eval.x86_64." + id + ":latest")
	patch, testPatch := w.text(format == SWESmith, "patch"), w.text(false, "test_patch")
	t.config.Environment = environment{Workdir: w.workdir("/testbed"), BuildTimeoutSec: 1800}
	t.config.Agent, t.config.Verifier = &limit{3600}, &limit{1800}
	if format == SWESmith {
		t.config.Metadata["repo"] = w.text(false, "repo")
		t.files["environment/Dockerfile"] = []byte("FROM " + image + "\nWORKDIR \"" + t.config.Environment.Workdir + "\"\n" + smithDockerfile)
		t.files["environment/bug.patch"] = []byte(patch)
		t.files["solution/bug.patch"] = []byte(patch)
		t.files["solution/solve.sh"] = script("smith_solve.sh")
	} else {
		t.config.Environment.DockerImage = image
		t.config.Metadata["repo"] = w.text(false, "repo")
		if patch != "" {
			t.files["solution/fix.patch"] = []byte(patch)
			t.files["solution/solve.sh"] = script("swe_solve.sh")
		}
	}
	runner := "pytest"
	switch t.config.Metadata["repo"] {
	case "django/django":
		runner = "django"
	case "sympy/sympy":
		runner = "sympy"
	}
	if testPatch != "" {
		t.files["tests/test.patch"] = []byte(testPatch)
	}
	w.json(t, "tests/tests.json", map[string]any{
		"runner": runner, "base_commit": commit, "test_files": w.patched(testPatch), "fail_to_pass": notNil(fail), "pass_to_pass": notNil(pass),
	})
	t.files["tests/test.sh"], t.files["tests/grade.py"], t.files["tests/turngate_report.py"] = script("swe_test.sh"), script("swe_grade.py"), script("turngate_report.py")
}

// smithDockerfile applies the patch with the bug and replaces the repository's
// history, which contains the correct code.
const smithDockerfile = `COPY bug.patch /tmp/bug.patch
RUN git apply --whitespace=nowarn /tmp/bug.patch && rm -rf .git /tmp/bug.patch && git init -q && git add -A && git -c user.name=task -c user.email=task@localhost commit -q -m base
`

func notNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// patched lists the files that a patch makes or changes.
func (w *row) patched(patch string) []string {
	out := []string{}
	for line := range strings.Lines(patch) {
		name, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "+++ b/")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, "\t")
		if !filepath.IsLocal(name) || strings.HasPrefix(name, "-") {
			w.wrong("test_patch", name, "want files of the repository")
			return out
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
		if len(out) > maxFiles {
			w.wrong("test_patch", fmt.Sprintf("more than %d files", maxFiles), "want fewer")
			return out
		}
	}
	return out
}

func (w *row) json(t *task, at string, v any) {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		w.wrong("row", err.Error(), "want JSON")
		return
	}
	t.files[at] = append(data, '\n')
}

// r2e makes a task of R2E-Gym. The tests are in its image.
func (w *row) r2e(t *task) {
	t.instruction = w.text(true, "problem_statement", "instruction")
	image := w.image("")
	if t.name == "" { // the image is unique to a row
		t.name = image
		t.config.Metadata["id"] = image
	}
	var expected map[string]string
	raw := w.text(true, "expected_output_json")
	if json.Unmarshal([]byte(raw), &expected) != nil || len(expected) == 0 || len(expected) > maxNames {
		w.wrong("expected_output_json", raw, "want an object of test names and PASSED, FAILED or ERROR, in a string")
	}
	t.config.Environment = environment{DockerImage: image, Workdir: w.workdir("/testbed"), BuildTimeoutSec: 1800}
	t.config.Agent, t.config.Verifier = &limit{3600}, &limit{1800}
	t.config.Metadata["repo"] = w.text(false, "repo_name", "repo")
	w.json(t, "tests/expected.json", expected)
	t.files["tests/test.sh"], t.files["tests/grade.py"] = script("r2e_test.sh"), script("r2e_grade.py")
	w.r2eSolution(t)
}

// r2eSolution makes the solution from the files of the commit of which the task
// was made.
func (w *row) r2eSolution(t *task) {
	var commit struct {
		Diffs []struct {
			Header struct {
				File struct {
					Path string `json:"path"`
				} `json:"file"`
			} `json:"header"`
			New *string `json:"new_file_content"`
		} `json:"file_diffs"`
	}
	raw := w.text(false, "parsed_commit_content")
	if raw == "" || json.Unmarshal([]byte(raw), &commit) != nil || len(commit.Diffs) > maxFiles {
		return // the solution is optional
	}
	for _, d := range commit.Diffs {
		at := d.Header.File.Path
		if d.New == nil || at == "" {
			continue
		}
		if !filepath.IsLocal(at) {
			w.wrong("parsed_commit_content", at, "want files of the repository")
			return
		}
		t.files[path.Join("solution/files", filepath.ToSlash(at))] = []byte(*d.New)
		t.files["solution/solve.sh"] = script("r2e_solve.sh")
	}
}

// commands makes a task of shell commands: setup commands run before the agent,
// checks after it. OpenEnv's rows, which may have files to upload, and plain rows
// have this form.
func (w *row) commands(t *task) {
	t.instruction = w.text(true, "instruction")
	workdir := w.workdir("/workspace")
	image := w.image("debian:bookworm-slim")
	t.config.Environment = environment{BuildTimeoutSec: 1800, Workdir: workdir}
	setup := append(w.list("setup", false), w.list("setup_shell", false)...)
	var checks []string
	for _, f := range []string{"verify", "verifier"} {
		checks = append(checks, w.list(f, false)...)
	}
	uploads := map[string]string{}
	if w.has("upload_files") && json.Unmarshal(w.fields["upload_files"], &uploads) != nil {
		w.wrong("upload_files", string(w.fields["upload_files"]), "want an object of paths and texts")
	}
	if len(setup) > maxFiles || len(checks) > maxFiles || len(uploads) > maxFiles {
		w.wrong("row", fmt.Sprintf("%d commands, %d checks, %d files", len(setup), len(checks), len(uploads)), fmt.Sprintf("want at most %d of each", maxFiles))
		return
	}
	if len(setup) == 0 && len(uploads) == 0 {
		t.config.Environment.DockerImage = image
	} else {
		w.build(t, image, workdir, setup, uploads)
	}
	for i, c := range checks {
		t.files[fmt.Sprintf("tests/checks/%04d.sh", i+1)] = []byte(c + "\n")
	}
	if len(checks) > 0 {
		t.files["tests/test.sh"] = script("verify_test.sh")
	}
	if s := w.text(false, "solution"); s != "" {
		t.files["solution/solve.sh"] = []byte("#!/bin/bash\n" + s + "\n")
	}
}

// build makes a Dockerfile that copies the files and runs the setup commands.
// Each command is in its own file.
func (w *row) build(t *task, image, workdir string, setup []string, uploads map[string]string) {
	dockerfile := "FROM " + image + "\nWORKDIR \"" + workdir + "\"\n"
	for at, text := range uploads {
		where := at
		if !path.IsAbs(at) {
			where = path.Join(workdir, at)
		}
		inside := strings.TrimPrefix(path.Clean(where), "/")
		if at == "" || strings.HasSuffix(at, "/") || !filepath.IsLocal(inside) || inside == "." || slices.Contains(strings.Split(at, "/"), "..") || !path.IsAbs(at) && !filepath.IsLocal(at) || strings.ContainsRune(at, 0) {
			w.wrong("upload_files", at, "want paths of files, absolute or in the working directory")
			return
		}
		t.files[path.Join("environment/files", inside)] = []byte(text)
	}
	if len(uploads) > 0 {
		dockerfile += "COPY files/ /\n"
	}
	for i, c := range setup {
		t.files[fmt.Sprintf("environment/setup/steps/%04d.sh", i+1)] = []byte(c + "\n")
	}
	if len(setup) > 0 {
		t.files["environment/setup/run.sh"] = script("setup_run.sh")
		dockerfile += "COPY setup/ /opt/task-setup/\nRUN sh /opt/task-setup/run.sh && rm -rf /opt/task-setup\n"
	}
	t.files["environment/Dockerfile"] = []byte(dockerfile)
}
