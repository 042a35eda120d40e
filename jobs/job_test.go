package jobs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

func plan(t *testing.T, attempts int, names ...string) jobs.Plan {
	t.Helper()
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Backend: "local", Attempts: attempts, Parallel: 2, Flags: map[string][]string{"agent": {"mini"}}}
	for _, n := range names {
		if err := p.AddTask("alpha", jobs.Task{Name: n, Dir: "/tasks/" + n, Source: "tasks", Digest: strings.Repeat("a", 64)}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func create(t *testing.T, p jobs.Plan) *jobs.Job {
	t.Helper()
	j, err := jobs.Create(filepath.Join(t.TempDir(), "job"), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	return j
}

func resultOf(tr jobs.Trial, reward float64) schema.Result {
	return schema.Result{V: schema.Version, ID: tr.Rollout, Trainer: "alpha", Group: tr.Group, Index: tr.Index, Task: tr.Task, Attempt: 1, Status: schema.StatusDone, Reward: &reward, Agent: "mini"}
}

// files holds the content of artifacts by name, and implements Fetch.
type files map[string][]byte

func (f files) artifacts() (out []schema.Artifact) {
	for name, data := range f {
		out = append(out, schema.Artifact{Name: name, Size: int64(len(data)), SHA256: strings.Repeat("0", 64)})
	}
	return out
}

func (f files) fetch(_ context.Context, a schema.Artifact, to io.Writer) error {
	if data, ok := f[a.Name]; ok && data != nil {
		_, err := to.Write(data)
		return err
	}
	_, _ = io.WriteString(to, "a part")
	return errors.New("it is gone")
}

func folder(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		h.Mode = 0o644
		if h.Typeflag == tar.TypeReg {
			h.Size = 2
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte("hi")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestHostileArtifactsStayInTheTrial: artifacts are written below the trial's
// folder only; links, devices and paths out of it are left out.
func TestHostileArtifactsStayInTheTrial(t *testing.T) {
	j := create(t, plan(t, 1, "x"))
	outside := filepath.Join(t.TempDir(), "outside")
	f := files{
		"agent.stdout.log": []byte("out"), "../../evil": []byte("evil"), "/etc/evil": []byte("evil"), "gone.txt": nil, "steps/../../../evil": []byte("evil"),
		"logs/artifacts.tar": folder(t,
			tar.Header{Name: "ok/file", Typeflag: tar.TypeReg}, tar.Header{Name: "../../../evil", Typeflag: tar.TypeReg},
			tar.Header{Name: "link", Linkname: outside, Typeflag: tar.TypeSymlink}, tar.Header{Name: "link/evil", Typeflag: tar.TypeReg},
			tar.Header{Name: "dev", Typeflag: tar.TypeChar}, tar.Header{Name: "ok/file/below", Typeflag: tar.TypeReg}, tar.Header{Name: strings.Repeat("n", 300), Typeflag: tar.TypeReg}),
	}
	tr := j.Missing()[0]
	r := resultOf(tr, 1)
	r.Artifacts = f.artifacts()
	if err := j.Put(t.Context(), r, f.fetch); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(j.Dir, tr.Name)
	for name, want := range map[string]string{"agent/agent.log": "out", "artifacts/logs/artifacts/ok/file": "hi", "artifacts/logs/artifacts/link/evil": "hi", "verifier/reward.txt": "1\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	err := filepath.WalkDir(filepath.Dir(j.Dir), func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.Contains(p, "evil") && !strings.HasPrefix(p, dir+"/artifacts/") || d.Type()&fs.ModeSymlink != 0 {
			t.Errorf("%s was made", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, "trial.log"))
	if err != nil || !strings.Contains(string(log), "gone.txt was not kept here: it is gone") || !strings.Contains(string(log), "5 entries of logs/artifacts.tar") {
		t.Errorf("%v: %s", err, log)
	}
}

// TestAnAgentCannotTakeNames: an agent cannot stop the job with the entries of
// its logs, nor replace or forge files of the worker.
func TestAnAgentCannotTakeNames(t *testing.T) {
	for _, as := range []byte{tar.TypeDir, tar.TypeReg} {
		j := create(t, plan(t, 1, "x"))
		tr := j.Missing()[0]
		r := resultOf(tr, 1)
		r.Transcript = "transcript.jsonl.zst"
		var forged []tar.Header
		for _, name := range []string{"trajectory.json", "agent.log", "agent.stderr.log", "oracle.txt", "sessions", "transcript.jsonl.zst"} {
			forged = append(forged, tar.Header{Name: name, Typeflag: as})
		}
		f := files{"agent.stdout.log": []byte("out"), "agent.stderr.log": []byte("err"), "transcript.jsonl.zst": []byte("calls"), "steps/s": []byte("x"),
			"logs/agent.tar": folder(t, append(forged, tar.Header{Name: "kept", Typeflag: tar.TypeReg})...), "manifest.json.tar": folder(t)}
		r.Artifacts = f.artifacts()
		slices.SortFunc(r.Artifacts, func(a, b schema.Artifact) int { return strings.Compare(a.Name, b.Name) }) // its logs come after ours
		convert := func(*schema.Result, map[string][]byte) (map[string][]byte, error) {
			return map[string][]byte{"agent/trajectory.json": []byte("ours"), "agent/kept/below": []byte("no room for it")}, nil
		}
		if err := j.PutWith(t.Context(), r, f.fetch, convert); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(j.Dir, tr.Name)
		for name, want := range map[string]string{"trajectory.json": "ours", "agent.log": "out", "agent.stderr.log": "err", "transcript.jsonl.zst": "calls", "kept": "hi"} {
			if got, err := os.ReadFile(filepath.Join(dir, "agent", name)); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "agent", "oracle.txt")); err == nil {
			t.Error("a forged file was kept")
		}
		log, err := os.ReadFile(filepath.Join(dir, "trial.log"))
		if err != nil || !strings.Contains(string(log), "/logs/agent/trajectory.json was left out") || !strings.Contains(string(log), "agent/kept/below") {
			t.Errorf("%v: %s", err, log)
		}
	}
}

// TestALateEventKeepsTheResult of a trial that had ended in an earlier process.
func TestALateEventKeepsTheResult(t *testing.T) {
	j := create(t, plan(t, 1, "x"))
	tr := j.Missing()[0]
	if err := j.Put(t.Context(), resultOf(tr, 1), files{}.fetch); err != nil {
		t.Fatal(err)
	}
	j.Close()
	again, err := jobs.Open(j.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Begin(tr.Rollout); err != nil {
		t.Fatal(err)
	}
	if err := again.Put(t.Context(), resultOf(tr, 0), files{}.fetch); err != nil {
		t.Fatal(err)
	}
	if _, results, err := jobs.Read(j.Dir); err != nil || len(results) != 1 || *results[0].Reward != 1 {
		t.Errorf("got %+v, %v", results, err)
	}
}

// TestGoOn: a reopened job has the results of the trials that ended, but not of
// trials that were interrupted. Only one process can open it.
func TestGoOn(t *testing.T) {
	j := create(t, plan(t, 2, "x", "y"))
	if _, err := jobs.Open(j.Dir); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("two processes have it: %v", err)
	}
	if _, err := jobs.Create(j.Dir, plan(t, 1, "x")); !errors.Is(err, jobs.ErrNotEmpty) {
		t.Errorf("a job was made over another: %v", err)
	}
	all := j.Missing()
	for _, tr := range all[:2] {
		if err := j.Put(t.Context(), resultOf(tr, 1), files{}.fetch); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Begin(all[2].Rollout); err != nil { // a trial that is interrupted
		t.Fatal(err)
	}
	cut := filepath.Join(j.Dir, all[2].Name)
	if err := os.WriteFile(filepath.Join(cut, "turngate.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	stopped, err := j.Stop(true)
	if err != nil || len(stopped) != 2 {
		t.Fatalf("%v, %v", stopped, err)
	}
	j.Close()
	again, err := jobs.Open(j.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	missing := again.Missing()
	if len(missing) != 2 || len(again.Results()) != 2 || missing[0].Name != all[2].Name || missing[0].Rollout == all[2].Rollout || !slices.Equal(missing[0].Stopped, []schema.ID{all[2].Rollout}) {
		t.Fatalf("got %+v", missing)
	}
	fault := resultOf(missing[0], 0)
	fault.Reward, fault.Fault = nil, schema.Faultf("agent", schema.CodeTimeout, schema.WhoAgent, "too slow\nby far")
	for range 2 { // the second call must change nothing
		if err := again.Put(t.Context(), fault, files{}.fetch); err != nil {
			t.Fatal(err)
		}
	}
	rerun := again.WithFault(func(r *schema.Result) bool { return r.Fault.Code == schema.CodeTimeout })
	if len(rerun) != 1 {
		t.Fatalf("%d have the fault", len(rerun))
	}
	next, err := rerun[0].Next()
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Rerun([]jobs.Trial{next}); err != nil {
		t.Fatal(err)
	}
	if left := again.Missing(); len(left) != 2 || left[0].Rollout == missing[0].Rollout {
		t.Errorf("got %+v", left)
	}
}

// TestForeignPlansAreChecked, since a folder may come from elsewhere.
func TestForeignPlansAreChecked(t *testing.T) {
	j := create(t, plan(t, 1, "x"))
	good, err := os.ReadFile(filepath.Join(j.Dir, "turngate.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*jobs.Plan){
		"v": func(p *jobs.Plan) { p.V = 9 }, "trials[0].name": func(p *jobs.Plan) { p.Trials[0].Name = "../x" },
		"trials[0].rollout": func(p *jobs.Plan) { p.Trials[0].Rollout = "x y" }, "trials[0].group": func(p *jobs.Plan) { p.Trials[0].Group = "short" },
	} {
		var p jobs.Plan
		if err := json.Unmarshal(good, &p); err != nil {
			t.Fatal(err)
		}
		change(&p)
		dir := t.TempDir()
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "turngate.json"), data, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := jobs.Read(dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := jobs.Read(t.TempDir()); !errors.Is(err, jobs.ErrNoJob) {
		t.Error(err)
	}
}

// spoil puts something else in the place of a file, by the kind of the damage.
func spoil(t *testing.T, kind, file string) {
	t.Helper()
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	var err error
	switch kind {
	case "empty":
		err = os.WriteFile(file, nil, 0o600)
	case "cut":
		err = os.WriteFile(file, []byte("{"), 0o600)
	case "invalid":
		err = os.WriteFile(file, []byte(`{"v":1}`), 0o600)
	case "missing":
	case "FIFO":
		err = unix.Mkfifo(file, 0o600)
	case "link":
		err = os.Symlink("/etc/hostname", file)
	case "folder":
		err = os.Mkdir(file, 0o700)
	case "too large":
		if err = os.WriteFile(file, nil, 0o600); err == nil {
			err = os.Truncate(file, 1<<40)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func damages() []string {
	return []string{"empty", "cut", "invalid", "missing", "FIFO", "link", "folder", "too large"}
}

// TestATrialThatCannotBeReadHidesNoOther: it is named, and runs again in a job that goes on,
// which keeps its files. Without result.json it counts as not ended.
func TestATrialThatCannotBeReadHidesNoOther(t *testing.T) {
	for _, kind := range damages() {
		j := create(t, plan(t, 3, "x"))
		all := j.Missing()
		for _, tr := range all {
			if err := j.Put(t.Context(), resultOf(tr, 1), files{}.fetch); err != nil {
				t.Fatal(err)
			}
		}
		j.Close()
		bad := all[1]
		spoil(t, kind, filepath.Join(j.Dir, bad.Name, "turngate.json"))
		p, results, err := jobs.Read(j.Dir)
		if err != nil || len(results) != 3 {
			t.Fatalf("%s: %d results, %v", kind, len(results), err)
		}
		for i := range results {
			r := &results[i]
			err := jobs.Unread(r)
			if r.ID != p.Trials[i].Rollout || r.Task != "x" || (err != nil) != (i == 1) || (r.Reward == nil) != (i == 1) {
				t.Errorf("%s: got %+v, %v", kind, r, err)
			}
			if err != nil && (!strings.Contains(err.Error(), "turngate.json") || strings.Contains(err.Error(), j.Dir)) {
				t.Errorf("%s: got %v", kind, err)
			}
		}
		if s := jobs.Sum(len(p.Trials), results); s.Faults() != 1 || s.Rewarded != 2 || *s.Mean != 1 {
			t.Errorf("%s: got %+v", kind, s)
		}
		again, err := jobs.Open(j.Dir)
		if err != nil {
			t.Fatal(err)
		}
		if missing := again.Missing(); len(missing) != 1 || missing[0].Name != bad.Name || again.Unread()[bad.Name] == nil || len(again.Unread()) != 1 {
			t.Errorf("%s: got %+v, %v", kind, missing, again.Unread())
		}
		if err := again.Put(t.Context(), resultOf(bad, 0), files{}.fetch); err != nil {
			t.Fatal(err)
		}
		again.Close()
		if _, results, err := jobs.Read(j.Dir); err != nil || len(results) != 3 || results[1].Reward == nil || *results[1].Reward != 0 {
			t.Errorf("%s: got %+v, %v", kind, results, err)
		}
		if _, err := os.Stat(filepath.Join(j.Dir, jobs.RetriedName, bad.Name+".unread1", "result.json")); err != nil {
			t.Errorf("%s: its files are lost: %v", kind, err)
		}
		spoil(t, kind, filepath.Join(j.Dir, bad.Name, "turngate.json"))
		spoil(t, "missing", filepath.Join(j.Dir, bad.Name, "result.json"))
		if _, results, err := jobs.Read(j.Dir); err != nil || len(results) != 2 {
			t.Errorf("%s: %d results, %v", kind, len(results), err)
		}
	}
}

// TestALinkIsNoTrial, whatever it leads to.
func TestALinkIsNoTrial(t *testing.T) {
	j := create(t, plan(t, 2, "x"))
	all := j.Missing()
	for _, tr := range all {
		if err := j.Put(t.Context(), resultOf(tr, 1), files{}.fetch); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	away := filepath.Join(t.TempDir(), "away")
	if err := errors.Join(os.Rename(filepath.Join(j.Dir, all[0].Name), away), os.Symlink(away, filepath.Join(j.Dir, all[0].Name))); err != nil {
		t.Fatal(err)
	}
	_, results, err := jobs.Read(j.Dir)
	if err != nil || len(results) != 2 || jobs.Unread(&results[0]) == nil || results[0].Reward != nil || results[1].Reward == nil {
		t.Errorf("got %+v, %v", results, err)
	}
	again, err := jobs.Open(j.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Put(t.Context(), resultOf(all[0], 0), files{}.fetch); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(away, "result.json")); err != nil {
		t.Errorf("the files behind the link were changed: %v", err)
	}
}

// TestAJobWithoutItsOwnResultIsListed with the time at which its last rollout ended.
func TestAJobWithoutItsOwnResultIsListed(t *testing.T) {
	for _, kind := range damages() {
		j := create(t, plan(t, 1, "x"))
		r := resultOf(j.Missing()[0], 1)
		r.Phases = []schema.Phase{{Name: "create", Start: 1_700_000_000_000, MS: 1000}, {Name: "agent", Start: 1_700_000_001_000, MS: 4000}}
		if err := j.Put(t.Context(), r, files{}.fetch); err != nil {
			t.Fatal(err)
		}
		j.Close()
		spoil(t, kind, filepath.Join(j.Dir, "result.json"))
		list, err := jobs.List(filepath.Dir(j.Dir))
		if err != nil || len(list) != 1 || list[0].Ended != 1 || list[0].Finished == nil || list[0].Finished.UnixMilli() != 1_700_000_005_000 {
			t.Errorf("%s: got %+v, %v", kind, list, err)
		}
	}
}

func TestSum(t *testing.T) {
	p := plan(t, 4, "x", "y")
	var results []schema.Result
	for i, tr := range p.Trials {
		r := resultOf(tr, float64(i%2)) // half of each task passes
		if i == 7 {
			r.Reward, r.Fault = nil, schema.Faultf("verify", schema.CodeNoReward, schema.WhoTask, "none")
		}
		results = append(results, r)
	}
	s := jobs.Sum(8, results)
	// x: 2 of 4, pass@1 1/2, pass@2 5/6; y: 1 of 3, pass@1 1/3, pass@2 2/3; pass@4 of x alone.
	if s.Rewarded != 7 || *s.Mean != 3.0/7 || len(s.PassAt) != 3 || s.PassAt[1] < 0.4166 || s.PassAt[1] > 0.4167 || s.PassAt[2] < 0.7499 || s.PassAt[2] > 0.7501 || s.PassAt[4] != 1 || s.Faults() != 1 || s.Errors[0].Code != schema.CodeNoReward {
		t.Errorf("got %+v", s)
	}
	half := 0.5
	results[0].Reward = &half
	if s := jobs.Sum(8, results); s.PassAt != nil {
		t.Errorf("rewards between 0 and 1 neither pass nor fail: %v", s.PassAt)
	}
	if s := jobs.Sum(3, nil); s.Mean != nil || s.Ended != 0 {
		t.Errorf("got %+v", s)
	}
}

// TestMeansOfSeveralRewards: as in Harbor a job has the mean of each number by its
// name if there are several names. A number that is not known counts in no mean.
func TestMeansOfSeveralRewards(t *testing.T) {
	for _, tt := range []struct {
		rewards []map[string]float64
		want    string
	}{
		{[]map[string]float64{{"reward": 1}, {"reward": 0}, nil}, `[{"mean":0.5}]`},
		{[]map[string]float64{{"speed": 1, "style": 0.5}, {"speed": 0, "style": 0.25}, nil}, `[{"speed":0.5,"style":0.375}]`},
		{[]map[string]float64{{"reward": 1}, {"reward": 0, "style": 0.5}, nil}, `[{"reward":0.5,"style":0.5}]`},
		{[]map[string]float64{nil, nil, nil}, `[]`},
	} {
		j := create(t, plan(t, 3, "x"))
		for i, tr := range j.Missing() {
			r := resultOf(tr, 0)
			r.Reward, r.Rewards = nil, tt.rewards[i]
			if n, ok := r.Rewards["reward"]; ok {
				r.Reward = &n
			}
			if err := j.Put(t.Context(), r, files{}.fetch); err != nil {
				t.Fatal(err)
			}
		}
		if err := j.WriteResult(true); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(j.Dir, "result.json"))
		var got struct {
			Stats struct {
				Evals map[string]struct{ Metrics json.RawMessage }
			}
		}
		if err == nil {
			err = json.Unmarshal(data, &got)
		}
		if err != nil || len(got.Stats.Evals) != 1 {
			t.Fatalf("%v: %s", err, data)
		}
		for _, e := range got.Stats.Evals {
			var b bytes.Buffer
			if err := json.Compact(&b, e.Metrics); err != nil || b.String() != tt.want {
				t.Errorf("%v: got %s, want %s", tt.rewards, b.String(), tt.want)
			}
		}
	}
}

func TestChoice(t *testing.T) {
	all := []string{"org/d-1", "d-2", "d-3", "e-1", "e-2"}
	of := func(c jobs.Choice, names []string) (out []string) {
		var list []jobs.Task
		for _, n := range names {
			list = append(list, jobs.Task{Name: n, Dir: "/tasks/" + filepath.Base(n)})
		}
		for _, t := range c.Of(list) {
			out = append(out, t.Name)
		}
		return out
	}
	seed := func(n uint64) *uint64 { return &n }
	for _, tt := range []struct {
		c    jobs.Choice
		want string
	}{
		{jobs.Choice{}, "org/d-1 d-2 d-3 e-1 e-2"}, {jobs.Choice{Filter: []string{"d*", "e-2"}, Exclude: []string{"*-3"}}, "org/d-1 d-2 e-2"},
		{jobs.Choice{Filter: []string{"org/*"}}, "org/d-1"}, {jobs.Choice{Limit: 2}, "org/d-1 d-2"},
	} {
		if got := strings.Join(of(tt.c, all), " "); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.c, got, tt.want)
		}
	}
	turned := slices.Clone(all)
	slices.Reverse(turned)
	differ := false
	for n := range uint64(20) {
		a, b := of(jobs.Choice{Limit: 2, Seed: seed(n)}, all), of(jobs.Choice{Limit: 2, Seed: seed(n)}, turned)
		slices.Sort(a)
		slices.Sort(b)
		if len(a) != 2 || !slices.Equal(a, b) {
			t.Errorf("seed %d: %v and %v", n, a, b)
		}
		differ = differ || !slices.Equal(a, []string{"d-2", "org/d-1"})
	}
	if !differ {
		t.Error("every seed takes the first tasks")
	}
}

// TestOtherUsersCannotReadAJob: its files have the variables of its tasks, and
// the logs of agents and verifiers.
func TestOtherUsersCannotReadAJob(t *testing.T) {
	j := create(t, plan(t, 1, "x"))
	f := files{"agent.stdout.log": []byte("out"), "verifier.tar": folder(t, tar.Header{Name: "a/b", Typeflag: tar.TypeReg}), "out/file": []byte("x")}
	r := resultOf(j.Missing()[0], 1)
	r.Artifacts = f.artifacts()
	if err := j.Put(t.Context(), r, f.fetch); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(j.Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v", p, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLateResult checks that a result soon after another one is written to result.json
// later, and that a closed job writes nothing.
func TestLateResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := create(t, plan(t, 2, "x")) // writes result.json
		completed := func() (n int) {
			data, err := os.ReadFile(filepath.Join(j.Dir, "result.json"))
			var got struct {
				Stats struct {
					N int `json:"n_completed_trials"`
				}
			}
			if err == nil {
				err = json.Unmarshal(data, &got)
			}
			if err != nil {
				t.Fatal(err)
			}
			return got.Stats.N
		}
		for i, tr := range j.Missing() {
			for range 2 { // the later call changes nothing
				if err := errors.Join(j.Put(t.Context(), resultOf(tr, 1), files{}.fetch), j.WriteResult(false)); err != nil {
					t.Fatal(err)
				}
			}
			if n := completed(); n != i {
				t.Errorf("result.json has %d results at once, want %d", n, i)
			}
			if i == 1 {
				j.Close()
			}
			<-time.After(2 * time.Second) // of the bubble
			synctest.Wait()
			if n := completed(); n != 1 {
				t.Errorf("result.json has %d results later, want 1", n)
			}
		}
	})
}

// TestADamagedFileIsNamed: the error has the file, the field, the value and a valid form.
func TestADamagedFileIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		`{"parallel":"2"}`:        "parallel: a string is not valid: want a whole number",
		`{"trials":[{"name":5}]}`: "trials.name: a number is not valid: want a string",
		`[]`:                      "an array is not valid: want an object",
		`{"parallel":`:            "it is not JSON: unexpected end of JSON input at byte 12",
	} {
		j := create(t, plan(t, 1, "a"))
		j.Close()
		if err := os.WriteFile(filepath.Join(j.Dir, "turngate.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := jobs.Open(j.Dir); err == nil || !strings.Contains(err.Error(), j.Dir+": turngate.json: "+want) || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
