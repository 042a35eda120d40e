package main_test

import (
	"encoding/json"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// longFault is a fault of several lines, with characters that move a terminal's
// cursor. Its end is the reason.
const longFault = "it cannot be built:\n" + "step 1: \x1b[2Jfetch the sources of the tool from its site, and unpack them below /opt\n" + "step 2: the compiler is missing"

// keptJob makes the folder of a job with a reward, two equal long faults, and a
// trial that has not ended.
func keptJob(t *testing.T, dir string) *jobs.Job {
	t.Helper()
	p := jobs.Plan{Variants: []jobs.Variant{{Agent: "mini"}}, Backend: "local", Attempts: 4, Parallel: 2}
	if err := p.AddTask("local", jobs.Task{Name: "org/bad\tname\nof a task", Dir: "/tasks/odd", Digest: strings.Repeat("a", 64)}); err != nil {
		t.Fatal(err)
	}
	j, err := jobs.Create(dir, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Close)
	one := 1.0
	for i, tr := range j.Missing()[:3] {
		r := schema.Result{V: schema.Version, ID: tr.Rollout, Trainer: "local", Group: tr.Group, Index: i, Task: tr.Task, Attempt: 1, Agent: "mini"}
		r.Status, r.Reward = schema.StatusDone, &one
		if i > 0 {
			r.Status, r.Reward, r.Fault = schema.StatusFailed, nil, schema.Faultf("create", schema.CodeImage, schema.WhoTask, "%s", longFault)
		}
		if err := j.Put(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.WriteResult(true); err != nil {
		t.Fatal(err)
	}
	return j
}

// row returns the expression of a line of a table with these cells.
func row(cells ...string) *regexp.Regexp {
	return regexp.MustCompile(`(?m)^` + strings.Join(cells, ` {2,}`) + `$`)
}

func TestJobsAreListed(t *testing.T) {
	t.Parallel()
	binary, runs := testenv.Binary(t), t.TempDir()
	j := keptJob(t, filepath.Join(runs, "first"))
	writeFile(t, filepath.Join(runs, "no-job/file"), "x")
	got := turngate(t, binary, "job", "ls", runs)
	for _, want := range []*regexp.Regexp{
		row("JOB", "STATE", "AGENT", "MODEL", "TRIALS", "ENDED", "MEAN", "ERRORS", "BEGUN", "TOOK"),
		row(regexp.QuoteMeta(j.Dir), "running", "mini", "-", "4", "3", "1", "2", `\d{4}-\d\d-\d\d \d\d:\d\d`, "-"),
	} {
		if got.code != 0 || !want.MatchString(got.out) {
			t.Errorf("no line %s: %+v", want, got)
		}
	}
	if n := strings.Count(got.out, "\n"); n != 2 {
		t.Errorf("%d lines: %s", n, got.out)
	}
	var list []jobs.Entry
	data := turngate(t, binary, "job", "ls", "-o", "json", "--runs", runs)
	if err := json.Unmarshal([]byte(data.out), &list); err != nil || len(list) != 1 || list[0].Dir != j.Dir || list[0].Trials != 4 || list[0].Ended != 3 || list[0].Mean == nil || *list[0].Mean != 1 || list[0].Faults() != 2 {
		t.Errorf("%v: %+v", err, data)
	}
	if got := turngate(t, binary, "job", "ls", "-o", "json", t.TempDir()); got.code != 0 || strings.TrimSpace(got.out) != "[]" {
		t.Errorf("no jobs: %+v", got)
	}
}

// TestAJobIsShown: a fault is cut to one line in the table and is whole below,
// once for all rollouts that have it.
func TestAJobIsShown(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	j := keptJob(t, filepath.Join(t.TempDir(), "first"))
	trials := j.Plan.Trials
	got := turngate(t, binary, "job", "show", j.Dir)
	cells := func(i int, more ...string) *regexp.Regexp {
		return row(append([]string{`org/bad name of a task`, regexp.QuoteMeta(trials[i].Name), regexp.QuoteMeta(string(trials[i].Rollout)), "1"}, more...)...)
	}
	cut := regexp.QuoteMeta(`create: image: it cannot be built: step 1: [2Jfetch the sources of the tool fro…`)
	for _, want := range []*regexp.Regexp{
		regexp.MustCompile(`^job first: running, agent mini, begun \d{4}-`),
		row("TASK", "TRIAL", "ROLLOUT", "ATTEMPT", "STATUS", "REWARD", "CALLS", "TOKENS", "COST", "SECONDS", "FAULT"),
		cells(0, "done", "1", "0", "0", "-", "0.0", "-"),
		cells(1, "failed", "null", "0", "0", "-", "0.0", cut), cells(2, "failed", "null", "0", "0", "-", "0.0", cut),
		regexp.MustCompile(`(?m)^` + string(trials[1].Rollout) + ` and 1 more: create: image: it cannot be built:\n    step 1: �\[2Jfetch the sources of the tool from its site, and unpack them below /opt\n    step 2: the compiler is missing$`),
		regexp.MustCompile(`(?m)^3 of 4 ended, mean reward 1 of the 1 with a reward, `),
		row("2", "create", "image", "task", `it cannot be built: .*`),
	} {
		if got.code != 0 || !want.MatchString(got.out) {
			t.Errorf("no %s:\n%s\n%s", want, got.out, got.errOut)
		}
	}
	if strings.Contains(got.out, "\x1b") || strings.Count(got.out, "the compiler is missing") != 1 {
		t.Errorf("%q", got.out)
	}
	if all := turngate(t, binary, "job", "show", "-o", "json", j.Dir); len(results(t, all)) != 3 || results(t, all)[1].Fault.Message != longFault {
		t.Errorf("%+v", all)
	}
	if lines := turngate(t, binary, "job", "show", "-o", "jsonl", j.Dir); lines.code != 0 || strings.Count(lines.out, "\n") != 3 {
		t.Errorf("%+v", lines)
	}
	if none := turngate(t, binary, "job", "show", t.TempDir()); none.code != 1 || none.out != "" || !strings.Contains(none.errOut, "not the folder of a job") {
		t.Errorf("%+v", none)
	}
}

// TestAJobWithoutAnAnswerHidesNoOther: a process of another person listens at its socket and
// says nothing.
func TestAJobWithoutAnAnswerHidesNoOther(t *testing.T) {
	binary, runs, home := testenv.Binary(t), t.TempDir(), testenv.Root(t)
	for _, name := range []string{"first", "silent", "mute"} {
		j := keptJob(t, filepath.Join(runs, name))
		j.Close()
		if name == "first" {
			continue
		}
		t.Chdir(j.Dir)
		l, err := net.Listen("unix", "control.sock")
		harness.Must(t, err)
		t.Cleanup(func() { _ = l.Close() })
	}
	t.Chdir(home)
	var list []struct {
		Dir, State string
		Ended      int
	}
	got := turngate(t, binary, "job", "ls", "-o", "json", runs)
	harness.Must(t, json.Unmarshal([]byte(got.out), &list))
	if len(list) != 3 || got.code != 1 || strings.Count(got.errOut, "does not answer within 3s") != 2 {
		t.Errorf("got %+v", got)
	}
	for _, one := range list {
		if one.Ended != 3 || (one.State == "died") != (filepath.Base(one.Dir) == "first") {
			t.Errorf("got %+v", one)
		}
	}
	if got := turngate(t, binary, "job", "show", filepath.Join(runs, "mute")); got.code != 1 || !strings.Contains(got.out, "its state is not known") || !strings.Contains(got.out, "3 of 4 ended") {
		t.Errorf("got %+v", got)
	}
}

// TestAJobThatDoesNotRun: a command for a running job says why there is none.
func TestAJobThatDoesNotRun(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	j := keptJob(t, filepath.Join(t.TempDir(), "first"))
	if got := turngate(t, binary, "job", "pause", j.Dir); got.code != 1 || !strings.Contains(got.errOut, "its process begins or ends") {
		t.Errorf("its folder is in use: %+v", got)
	}
	j.Close()
	for _, action := range []string{"pause", "resume", "cancel"} {
		got := turngate(t, binary, "job", action, j.Dir)
		if got.code != 1 || !strings.Contains(got.errOut, "does not run: its process died; go on with: turngate run --resume "+j.Dir) {
			t.Errorf("%s: %+v", action, got)
		}
	}
	if got := turngate(t, binary, "job", "show", j.Dir); !strings.HasPrefix(got.out, "job first: died, ") {
		t.Errorf("%+v", got)
	}
	if got := turngate(t, binary, "job", "cancel", t.TempDir()); got.code != 1 || !strings.Contains(got.errOut, "not the folder of a job") {
		t.Errorf("%+v", got)
	}
}
