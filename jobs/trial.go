package jobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/schema"
)

// Fetch writes an artifact to a writer. After an error the writer may have a part of it.
type Fetch func(ctx context.Context, a schema.Artifact, to io.Writer) error

// convert derives further files, by name, from a result and its transcript. They
// are stored in the trial's folder.
type convert func(r *schema.Result, artifacts map[string][]byte) (map[string][]byte, error)

// Begin records that a trial runs. Later calls for the same trial, and calls for
// a trial that has ended, do nothing.
func (j *Job) Begin(id schema.ID) error {
	j.begins.Lock()
	defer j.begins.Unlock()
	j.mu.Lock()
	t := j.trials[id]
	first := t != nil && !j.begun[t.Name]
	if t != nil {
		if _, ended := j.done[t.Name]; ended {
			first = false // a late event must not remove the result
		}
	}
	if first {
		j.begun[t.Name] = true
	}
	j.mu.Unlock()
	if !first {
		return nil
	}
	j.Logf("%s begins: rollout %s of task %s", t.Name, t.Rollout, t.Task)
	root, err := j.fresh(t)
	if err != nil {
		return fmt.Errorf("begin trial %s: %w", t.Name, err)
	}
	defer root.Close()
	return errors.Join(putJSON(root, "config.json", j.trialConfig(t)), putJSON(root, "lock.json", j.trialLock(t, "")))
}

// fresh makes an empty folder for a trial. It removes the files of a process that
// died.
func (j *Job) fresh(t *Trial) (*os.Root, error) {
	if err := errors.Join(j.setAside(t), j.keepUnread(t)); err != nil {
		return nil, err
	}
	dir := filepath.Join(j.Dir, t.Name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenRoot(dir)
}

// Put stores the result of a trial and its artifacts. The trial has ended if Put
// returns nil, and has not ended if Put returns an error. This survives a crash.
// An artifact that cannot be read becomes a note.
func (j *Job) Put(ctx context.Context, r schema.Result, fetch Fetch) error {
	return j.putWith(ctx, r, fetch, trajectoryOf)
}

func (j *Job) putWith(ctx context.Context, r schema.Result, fetch Fetch, more convert) error {
	if err := j.Begin(r.ID); err != nil {
		return err
	}
	j.mu.Lock()
	t := j.trials[r.ID]
	if t == nil {
		j.mu.Unlock()
		return fmt.Errorf("rollout %s is not of this job", r.ID)
	}
	_, there := j.done[t.Name]
	j.mu.Unlock()
	if there {
		return nil
	}
	if err := j.put(ctx, t, &r, fetch, more); err != nil {
		return fmt.Errorf("keep the result of trial %s: %w", t.Name, err)
	}
	j.mu.Lock()
	j.done[t.Name] = r
	j.mu.Unlock()
	j.Logf("%s ends: %s", t.Name, ending(r))
	return nil
}

// storeFaults stores the results of the trials that cannot run.
func (j *Job) storeFaults(ctx context.Context) error {
	for _, t := range j.Missing() {
		if t.Fault == nil {
			continue
		}
		r := schema.Result{
			V: schema.Version, ID: t.Rollout, Trainer: t.Rollout.Trainer(), Group: t.Group, Index: t.Index, Task: t.Task,
			Status: schema.StatusFailed, Fault: t.Fault, Agent: t.Agent,
		}
		if err := j.Put(ctx, r, nil); err != nil { // it has no artifacts to fetch
			return err
		}
	}
	return j.WriteResult(true)
}

// ending describes a result for the log, which makes one line of it.
func ending(r schema.Result) string {
	s := string(r.Status)
	if r.Reward != nil {
		s += ", reward " + strconv.FormatFloat(*r.Reward, 'g', -1, 64)
	}
	if r.Fault != nil {
		s += ", " + r.Fault.Error()
	}
	return s
}

func (j *Job) put(ctx context.Context, t *Trial, r *schema.Result, fetch Fetch, more convert) error {
	root, err := os.OpenRoot(filepath.Join(j.Dir, t.Name))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, dir := range []string{"agent", "verifier", "artifacts"} {
		if err := root.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	files, err := spool.Open(filepath.Join(j.Dir, t.Name))
	if err != nil {
		return err
	}
	k := &keeper{root: root, has: map[string]bool{}, entries: map[string][]harborManifestEntry{"": {}}}
	for _, a := range inOrderOfTrust(r.Artifacts) {
		err := k.keep(ctx, r, a, files.New(), fetch)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var disk *spool.Error
		if noRoom(err) || errors.As(err, &disk) {
			return err
		}
		if err != nil {
			k.note("%s was not kept here: %v", a.Name, err)
		}
	}
	derived, err := more(r, k.files)
	if err != nil {
		k.note("%v", err)
	}
	for name, data := range derived {
		if err := k.skip(own(root, name, bytes.NewReader(data))); err != nil {
			return err
		}
	}
	if err := k.skip(k.verifier(r)); err != nil {
		return err
	}
	if err := k.skip(k.manifests()); err != nil {
		return err
	}
	if err := put(root, "trial.log", strings.NewReader(k.log(t, r))); err != nil {
		return err
	}
	if r.Fault != nil {
		if err := put(root, "exception.txt", strings.NewReader(faultException(r.Fault, time.Time{}).Traceback)); err != nil {
			return err
		}
	}
	if err := putJSON(root, "lock.json", j.trialLock(t, verifierMode(r))); err != nil {
		return err
	}
	whole, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := replace(root, planName, append(whole, '\n')); err != nil {
		return err
	}
	return writeJSON(filepath.Join(j.Dir, t.Name), "result.json", j.trial(t, r))
}

// inOrderOfTrust returns the artifacts with the folders of the agent's logs
// first: files of the worker with the same names replace their entries.
func inOrderOfTrust(list []schema.Artifact) []schema.Artifact {
	isLogs := func(a schema.Artifact) bool {
		name := path.Clean(a.Name)
		return name == agentLogs || strings.HasSuffix(name, "/"+agentLogs)
	}
	out := slices.Clone(list)
	slices.SortStableFunc(out, func(a, b schema.Artifact) int {
		switch {
		case isLogs(a) == isLogs(b):
			return 0
		case isLogs(a):
			return -1
		default:
			return 1
		}
	})
	return out
}

// own writes a file of the worker. It first removes an artifact's entry that has
// the same name.
func own(root *os.Root, name string, from io.Reader) error {
	if err := root.RemoveAll(name); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return put(root, name, from)
}

func putJSON(root *os.Root, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := root.RemoveAll(name); err != nil { // an artifact's entry with the same name
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return replace(root, name, append(data, '\n'))
}

// keeper writes the artifacts of a rollout into the folder of its trial.
type keeper struct {
	root    *os.Root
	entries map[string][]harborManifestEntry // by folder
	has     map[string]bool                  // folders with a manifest of the worker
	notes   []string
	files   map[string][]byte // the transcript, for convert
}

// Names of the artifacts that a worker keeps of every rollout.
const (
	stdoutName   = "agent.stdout.log"
	stderrName   = "agent.stderr.log"
	sessionsName = "agent-sessions.tar"
	agentLogs    = "logs/agent.tar"
)

// keep fetches an artifact into a file, and from there to its place. It closes the file.
func (k *keeper) keep(ctx context.Context, r *schema.Result, a schema.Artifact, f *spool.File, fetch Fetch) error {
	defer f.Close()
	if err := fetch(ctx, a, f); err != nil {
		return err
	}
	content, err := f.Content()
	if err != nil {
		return err
	}
	return k.artifact(r, a, content)
}

// artifact writes an artifact to its place in Harbor's layout: logs of the agent
// to agent/, others to artifacts/ under their path in the sandbox, each below
// steps/NAME for a step. It unpacks folders.
func (k *keeper) artifact(r *schema.Result, a schema.Artifact, content *io.SectionReader) error {
	name := path.Clean(a.Name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("its name %q is outside the trial's folder", a.Name)
	}
	dir := ""
	if rest, ok := strings.CutPrefix(name, "steps/"); ok {
		if step, below, ok := strings.Cut(rest, "/"); ok {
			dir, name = path.Join("steps", step), below
		}
	}
	switch {
	case name == r.Transcript && dir == "" && name != "":
		data, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		k.files = map[string][]byte{name: data}
		return own(k.root, path.Join("agent", name), bytes.NewReader(data))
	case name == stdoutName && r.Agent == "oracle":
		return own(k.root, path.Join(dir, "agent/oracle.txt"), whole(content)) // Harbor's viewer shows this file
	case name == stdoutName:
		return own(k.root, path.Join(dir, "agent/agent.log"), whole(content))
	case name == stderrName:
		return own(k.root, path.Join(dir, "agent", name), whole(content))
	case name == sessionsName:
		if err := k.root.RemoveAll(path.Join(dir, "agent/sessions")); err != nil {
			return err
		}
		return k.unpack(path.Join(dir, "agent/sessions"), a.Name, content)
	case name == agentLogs:
		err := k.unpack(path.Join(dir, "agent"), a.Name, content)
		return errors.Join(err, k.refuse(r, path.Join(dir, "agent")))
	case name == schema.ArtifactManifest:
		k.has[dir] = true
		return errors.Join(own(k.root, path.Join(dir, "artifacts/manifest.json"), whole(content)), k.input(r, name, content))
	}
	if err := k.input(r, name, content); err != nil {
		return err
	}
	at, isTar := strings.CutSuffix(name, ".tar")
	e := harborManifestEntry{Source: "/" + at, Destination: path.Join("artifacts", at), Type: "file", Status: "ok"}
	if isTar {
		e.Type = "directory"
	}
	at = path.Join(dir, "artifacts", at)
	var err error
	if isTar {
		err = k.unpack(at, a.Name, content)
	} else {
		err = put(k.root, at, whole(content))
	}
	if err != nil {
		e.Status = "failed"
	}
	k.entries[dir] = append(k.entries[dir], e)
	return err
}

// InputsDir is the folder of a trial with the artifacts as they were, if a separate verifier
// got them or the agent's working directory is one of them. Package regrade reads them.
const InputsDir = "verifier/inputs"

// input keeps an artifact for a verifier that runs again.
func (k *keeper) input(r *schema.Result, name string, content *io.SectionReader) error {
	workdir := func(a schema.Artifact) bool { return a.Name == schema.ArtifactWorkdir+".tar" }
	if len(r.Steps) > 0 || r.Separation != schema.SeparationSandbox && !slices.ContainsFunc(r.Artifacts, workdir) {
		return nil
	}
	return put(k.root, path.Join(InputsDir, name), whole(content))
}

// whole reads a content from its beginning.
func whole(content *io.SectionReader) io.Reader {
	return io.NewSectionReader(content, 0, content.Size())
}

func (k *keeper) unpack(below, name string, content *io.SectionReader) error {
	leftOut, err := unpack(k.root, below, whole(content))
	if leftOut > 0 {
		k.note("%d entries of %s were left out: they are links or have names that are not valid here", leftOut, name)
	}
	return err
}

// refuse removes entries of the agent's logs that have the name of a file of the
// worker, since a reader could mistake them for that file.
func (k *keeper) refuse(r *schema.Result, dir string) error {
	names := []string{"agent.log", stderrName, "oracle.txt", "sessions", "trajectory.json"}
	if r.Transcript != "" && filepath.IsLocal(r.Transcript) {
		names = append(names, r.Transcript)
	}
	for _, name := range names {
		at := path.Join(dir, name)
		if _, err := k.root.Lstat(at); err != nil {
			continue
		}
		k.note("/logs/agent/%s was left out: the trial has a file of that name", name)
		if err := k.root.RemoveAll(at); err != nil {
			return fmt.Errorf("remove %s: %w", at, err)
		}
	}
	return nil
}

// skip makes a note of an error, unless the disk is full or failing.
func (k *keeper) skip(err error) error {
	if err == nil || noRoom(err) {
		return err
	}
	k.note("%v", err)
	return nil
}

func (k *keeper) note(format string, args ...any) {
	k.notes = append(k.notes, fmt.Sprintf(format, args...))
}

// manifests writes a manifest of the artifacts into each folder that has none of
// the worker.
func (k *keeper) manifests() error {
	for dir, list := range k.entries {
		if k.has[dir] {
			continue
		}
		if err := putJSON(k.root, path.Join(dir, "artifacts/manifest.json"), list); err != nil {
			return err
		}
	}
	return nil
}

// verifier writes the output and the rewards of the verifier of each step, or of
// the task.
func (k *keeper) verifier(r *schema.Result) error {
	write := func(dir, phase string, reward *float64, all map[string]float64) error {
		for _, p := range r.Phases {
			if p.Name == phase {
				if err := own(k.root, path.Join(dir, "test-stdout.txt"), strings.NewReader(p.Output)); err != nil {
					return err
				}
			}
		}
		switch {
		case len(all) > 0:
			return putJSON(k.root, path.Join(dir, "reward.json"), all)
		case reward != nil:
			return put(k.root, path.Join(dir, "reward.txt"), strings.NewReader(strconv.FormatFloat(*reward, 'g', -1, 64)+"\n"))
		}
		return nil
	}
	if len(r.Steps) == 0 {
		return write("verifier", "verify", r.Reward, r.Rewards)
	}
	for _, s := range r.Steps {
		if s.Name != path.Base(s.Name) || strings.HasPrefix(s.Name, ".") {
			return fmt.Errorf("the step's name %q cannot be a folder", s.Name)
		}
		if err := write(path.Join("steps", s.Name, "verifier"), "step/"+s.Name+"/verify", s.Reward, s.Rewards); err != nil {
			return err
		}
	}
	return nil
}

// log returns the text of trial.log.
func (k *keeper) log(t *Trial, r *schema.Result) string {
	var b strings.Builder
	line := func(at int64, format string, args ...any) {
		stamp := "-"
		if at > 0 {
			stamp = time.UnixMilli(at).UTC().Format("2006-01-02T15:04:05.000Z")
		}
		fmt.Fprintf(&b, "%s %s\n", stamp, plain.Line(fmt.Sprintf(format, args...), maxLogLine))
	}
	line(0, "rollout %s of task %s, attempt %d, worker %s, agent %s %s", r.ID, t.Task, r.Attempt, cmp.Or(r.Worker, "none"), r.Agent, r.AgentVersion)
	var end int64
	for _, p := range r.Phases {
		line(p.Start, "%s begins", p.Name)
		end = p.Start + p.MS
		if p.Exit != nil {
			line(end, "%s ends after %d ms: %s", p.Name, p.MS, p.Exit)
		} else {
			line(end, "%s ends after %d ms", p.Name, p.MS)
		}
		if base := cutIndex(p.Name); base == "setup" || base == "create" {
			for out := range strings.Lines(p.Output) {
				line(end, "%s | %s", p.Name, out)
			}
		}
	}
	for _, n := range append(slices.Clip(r.Notes), k.notes...) {
		line(end, "%s", n)
	}
	line(end, "%s", ending(*r))
	return b.String()
}

// cutIndex removes the index from a name such as setup[0].
func cutIndex(name string) string {
	base, _, _ := strings.Cut(name, "[")
	return base
}

// maxLogLine is the number of characters of the longest line of a log.
const maxLogLine = 4000

// Logf adds a line to the job's log.
func (j *Job) Logf(format string, args ...any) {
	text := plain.Line(fmt.Sprintf(format, args...), maxLogLine)
	_, _ = fmt.Fprintf(j.log, "%s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), text) // an error of the log does not stop the job
}
