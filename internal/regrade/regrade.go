// Package regrade makes a task of a recorded rollout. The task's solution consists of the
// files that the rollout's agent left, so a job of the agent oracle runs the verifier again.
//
// It works for rollouts with a separate verifier, since that verifier gets nothing but
// artifacts, which the folder of a job keeps as they were, and for rollouts with a kept working
// directory.
package regrade

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/internal/stranger"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// maxInput is the size in bytes of the largest file or manifest that is read.
const maxInput = 512 << 20

// Rollout is a recorded rollout that can be verified again.
type Rollout struct {
	*recorded.Rollout
	// Apart means that its verifier had a sandbox of its own.
	Apart  bool
	places []place
}

// place is a path that the verifier's sandbox got, or lacked, of the agent's.
type place struct {
	source string // in the sandbox
	folder bool
	name   string // of its artifact, which has .tar after it for a folder
	file   string // with its content; empty: an empty folder
	gone   bool   // the agent left no such path
}

// entry is an entry of the manifest of artifacts.
type entry struct {
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Status      string   `json:"status"`
	Service     string   `json:"service"`
	Exclude     []string `json:"exclude"`
}

// workdir reports whether the entry is the agent's working directory.
func (e *entry) workdir() bool {
	return e.Source == "." && e.Destination == "artifacts/"+schema.ArtifactWorkdir
}

// Of returns the rollout if it can be verified again. Otherwise the error is the reason.
func Of(r *recorded.Rollout) (*Rollout, error) {
	q := r.Result
	switch {
	case q == nil:
		return nil, errors.New("it has not ended")
	case r.Unread != nil:
		return nil, fmt.Errorf("its result cannot be read: %w", r.Unread)
	case len(q.Steps) > 0:
		return nil, errors.New("its task has several steps, each of which begins with the files of the one before")
	case q.Separation == "":
		return nil, errors.New("it ended before it was verified")
	case !tasks.IsTask(r.Trial.Dir):
		return nil, fmt.Errorf("the folder of its task is not there: %s", r.Trial.Dir)
	}
	out := &Rollout{Rollout: r, Apart: q.Separation == schema.SeparationSandbox}
	notKept := fmt.Errorf("its verifier ran in the agent's sandbox, whose files were not kept%s: `turngate run --keep-workdir` keeps those of the working directory", because(q.Notes))
	if !out.Apart && !slices.ContainsFunc(q.Artifacts, func(a schema.Artifact) bool { return a.Name == schema.ArtifactWorkdir+".tar" }) {
		return nil, notKept
	}
	data, err := out.input(schema.ArtifactManifest)
	if err != nil {
		return nil, err
	}
	var manifest []entry
	if err := json.Unmarshal(data, &manifest); err != nil {
		return nil, fmt.Errorf("its manifest of artifacts cannot be read: %w", rawjson.Plain(err))
	}
	if !out.Apart && !slices.ContainsFunc(manifest, func(e entry) bool { return e.workdir() && (e.Status == "ok" || e.Status == "empty") }) {
		return nil, notKept
	}
	for _, e := range manifest {
		switch {
		case len(e.Exclude) == 0:
		case e.workdir():
			return nil, fmt.Errorf("its working directory was kept without %s, which had no room", strings.Join(e.Exclude, ", "))
		case !out.Apart && !filepath.IsLocal(e.Source): // files below the working directory are kept with it
			return nil, fmt.Errorf("its verifier ran in the agent's sandbox, and its artifact %s was kept without %s", e.Source, strings.Join(e.Exclude, ", "))
		}
		p, err := out.place(e)
		if err != nil {
			return nil, err
		}
		out.places = append(out.places, p)
	}
	return out, nil
}

// because returns the note of a rollout that tells why its working directory was not kept.
func because(notes []string) string {
	for _, n := range notes {
		if strings.HasPrefix(n, "the working directory was not kept: ") || strings.HasPrefix(n, "the artifact . was not kept: ") {
			_, why, _ := strings.Cut(n, ": ")
			return " (" + why + ")"
		}
	}
	return ""
}

// place returns the place of an artifact, after a check of its content.
func (r *Rollout) place(e entry) (place, error) {
	p := place{source: e.Source, folder: e.Type == "directory", name: strings.TrimPrefix(e.Destination, "artifacts/")}
	switch {
	case e.Source == "" || path.Clean(e.Source) == "/":
		return p, fmt.Errorf("its artifact %q is no path of its own", e.Source)
	case e.Service != "" && e.Service != "main" && e.Status != "failed":
		return p, fmt.Errorf("its artifact %s is of the service %s, and a new rollout has the files of the main one alone", e.Source, e.Service)
	case e.Status == "failed" && !r.Apart && !r.missing(e.Source):
		return p, fmt.Errorf("its verifier ran in the agent's sandbox, whose %s was not kept", e.Source)
	case e.Status == "failed":
		p.gone = true
	case e.Status == "empty" && !e.workdir():
	case e.Status == "ok" || e.Status == "empty":
		p.file = p.name
		if p.folder {
			p.file += ".tar"
		}
		if _, err := r.input(p.file); err != nil {
			return p, err
		}
	default:
		return p, fmt.Errorf("its artifact %s was not kept: another one has its name", e.Source)
	}
	return p, nil
}

// missing reports whether the agent left no such path: its note tells it from one that was
// too large or could not be read.
func (r *Rollout) missing(source string) bool {
	return slices.ContainsFunc(r.Result.Notes, func(n string) bool {
		return strings.HasPrefix(n, "the artifact "+source+" was not kept: ") && strings.HasSuffix(n, fs.ErrNotExist.Error())
	})
}

// input reads an artifact as it was, and compares it with the result.
func (r *Rollout) input(name string) ([]byte, error) {
	return inputOf(r.Result, filepath.Join(r.Job, r.Trial.Name), name)
}

// inputOf reads an artifact of a result from the folder of its trial.
func inputOf(of *schema.Result, dir, name string) ([]byte, error) {
	i := slices.IndexFunc(of.Artifacts, func(a schema.Artifact) bool { return a.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("its result has no artifact %s", name)
	}
	trial, err := stranger.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("its folder cannot be read: %w", err)
	}
	defer trial.Close()
	data, err := trial.Read(path.Join(jobs.InputsDir, name), maxInput)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s was not kept for its verifier", name)
	}
	if err != nil {
		return nil, fmt.Errorf("its artifact %s cannot be read: %w", name, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != of.Artifacts[i].SHA256 {
		return nil, fmt.Errorf("its artifact %s was changed after the rollout", name)
	}
	return data, nil
}

// Task writes the task of the rollout into an empty folder, with the files of the
// rollout as its solution, and with the tests of another folder if tests is not empty.
func (r *Rollout) Task(dir, tests string) error {
	if err := os.CopyFS(dir, os.DirFS(r.Trial.Dir)); err != nil {
		return fmt.Errorf("copy task %s: %w", r.Trial.Dir, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "solution")); err != nil {
		return fmt.Errorf("replace the solution of task %s: %w", r.Trial.Dir, err)
	}
	if tests != "" {
		at := filepath.Join(dir, "tests")
		if err := errors.Join(os.RemoveAll(at), os.CopyFS(at, os.DirFS(tests))); err != nil {
			return fmt.Errorf("replace the tests of task %s: %w", r.Trial.Dir, err)
		}
	}
	return r.solution(filepath.Join(dir, "solution"))
}

// solution writes the recorded files and a script that puts them in their places.
func (r *Rollout) solution(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("write the files of %s: %w", r.Name(), err)
	}
	script := "#!/bin/sh\nset -e\n"
	for i, p := range r.places {
		at := plain.Word(p.source)
		if path.Clean(p.source) == "." {
			script += "for f in * .[!.]* ..?*; do rm -rf -- \"./$f\" || true; done\n"
		} else {
			script += "rm -rf -- " + at + " || true\n" // a mount stays, without its files
		}
		switch {
		case p.gone:
			continue
		case p.file == "":
			script += "mkdir -p -- " + at + "\n"
			continue
		}
		data, err := r.input(p.file)
		if err != nil {
			return err
		}
		own, mode := fmt.Sprintf("%d", i), os.FileMode(0o644)
		if bytes.HasPrefix(data, []byte("#!")) || bytes.HasPrefix(data, []byte("\x7fELF")) {
			mode = 0o755 // a record of a file has no mode
		}
		if err := os.WriteFile(filepath.Join(dir, own), data, mode); err != nil {
			return fmt.Errorf("write the files of %s: %w", r.Name(), err)
		}
		if p.folder {
			script += "mkdir -p -- " + at + "\ntar -xpf /solution/" + own + " -C " + at + "\n"
		} else {
			script += "mkdir -p -- \"$(dirname -- " + at + ")\"\ncp -p -- /solution/" + own + " " + at + "\n"
		}
	}
	if !r.Apart {
		script += "rm -rf /solution || true\n" // the verifier runs in this sandbox
	}
	if err := os.WriteFile(filepath.Join(dir, "solve.sh"), []byte(script), 0o755); err != nil {
		return fmt.Errorf("write the files of %s: %w", r.Name(), err)
	}
	return nil
}

// Check returns an error if the verifier of a later rollout of Task got other files than
// this rollout's. dir is the folder of the later trial.
func (r *Rollout) Check(again *schema.Result, dir string) error {
	for _, p := range r.places {
		if p.file == "" {
			if slices.ContainsFunc(again.Artifacts, func(a schema.Artifact) bool { return a.Name == p.name || a.Name == p.name+".tar" }) {
				return fmt.Errorf("the verifier got files at %s, where it had none before", p.source)
			}
			continue
		}
		is := func(a schema.Artifact) bool { return a.Name == p.file }
		old, later := slices.IndexFunc(r.Result.Artifacts, is), slices.IndexFunc(again.Artifacts, is)
		if later >= 0 && r.Result.Artifacts[old].SHA256 == again.Artifacts[later].SHA256 {
			continue
		}
		if later < 0 || !p.folder || !r.sameTree(again, dir, p.file) {
			return fmt.Errorf("the verifier got other files at %s than before", p.source)
		}
	}
	return nil
}

// sameTree reports whether a folder of a later trial has the same entries, apart from their
// times.
func (r *Rollout) sameTree(again *schema.Result, dir, name string) bool {
	before, err := r.input(name)
	if err != nil {
		return false
	}
	now, err := inputOf(again, dir, name)
	if err != nil {
		return false
	}
	a, aerr := treeOf(before)
	b, berr := treeOf(now)
	return aerr == nil && berr == nil && maps.Equal(a, b)
}

// node is an entry of a tar without its times.
type node struct {
	kind     byte
	mode     int64
	uid, gid int
	link     string
	sum      [sha256.Size]byte
}

// treeOf returns the entries of a tar by their names. The agent may have made the tar: an
// entry with holes can have any size.
func treeOf(data []byte) (map[string]node, error) {
	out, left := map[string]node{}, int64(len(data))
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if left -= h.Size; left < 0 {
			return nil, errors.New("its files have more bytes than it has")
		}
		content := sha256.New()
		if _, err := io.Copy(content, r); err != nil {
			return nil, err
		}
		n := node{kind: h.Typeflag, link: h.Linkname, sum: [sha256.Size]byte(content.Sum(nil))}
		if h.Typeflag != tar.TypeSymlink { // the owner of a link has no effect
			n.mode, n.uid, n.gid = h.Mode, h.Uid, h.Gid
		}
		out[h.Name] = n
	}
}
