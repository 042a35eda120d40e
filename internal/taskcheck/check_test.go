package taskcheck_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/taskcheck"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(n int, run func(ctx context.Context, agent string) (schema.Result, error)) taskcheck.Config {
	c := taskcheck.Config{Parallel: 4}
	for i := range n {
		c.Dirs = append(c.Dirs, fmt.Sprint("task-", i))
	}
	c.Load = func(dir string) (*tasks.Task, error) {
		return &tasks.Task{Dir: dir, Request: schema.Request{Task: schema.Task{Name: dir, Instruction: "x"}}, Bundle: []byte(dir)}, nil
	}
	c.Request = func(t *tasks.Task, agent string) (schema.Request, error) {
		q := t.Request
		q.Agent.Name = agent
		return q, nil
	}
	c.Run = func(ctx context.Context, q schema.Request, _ []byte) (schema.Result, error) {
		return run(ctx, q.Agent.Name)
	}
	return c
}

func zero(context.Context, string) (schema.Result, error) {
	var reward float64
	return schema.Result{Status: schema.StatusDone, Reward: &reward}, nil
}

// TestChecksGoOnWhereTheyWereStopped: finished checks are not repeated, even if
// the process was killed while it wrote; a changed task is checked again.
func TestChecksGoOnWhereTheyWereStopped(t *testing.T) {
	dir := t.TempDir()
	open := func(settings string) *taskcheck.State {
		s, err := taskcheck.Open(dir, settings)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	var ran atomic.Int64
	c := config(200, func(ctx context.Context, agent string) (schema.Result, error) {
		if ran.Add(1) == 100 {
			cancel(errors.New("stopped"))
		}
		if err := ctx.Err(); err != nil {
			return schema.Result{}, err
		}
		return zero(ctx, agent)
	})
	c.State = open("a")
	if _, err := taskcheck.Open(dir, "a"); !errors.Is(err, taskcheck.ErrBusy) {
		t.Errorf("two processes share the state: %v", err)
	}
	first, err := taskcheck.Run(ctx, c)
	if err == nil || err.Error() != "stopped" || len(first) < 90 || len(first) > 100+c.Parallel {
		t.Fatalf("%d reports, %v", len(first), err)
	}
	c.State.Close()
	f, err := os.OpenFile(filepath.Join(dir, "checks.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"dir":"task-150","key":"`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	ran.Store(1000)
	c.State = open("a")
	all, err := taskcheck.Run(t.Context(), c)
	if err != nil || len(all) != 200 || int(ran.Load())-1000 != 200-len(first) {
		t.Fatalf("%d reports, %d were made again, %v", len(all), ran.Load()-1000, err)
	}
	for i, r := range all {
		if r.Dir != c.Dirs[i] || !r.OK {
			t.Fatalf("report %d: %+v", i, r)
		}
	}
	c.State.Close()
	ran.Store(1000)
	c.State = open("b")
	if _, err := taskcheck.Run(t.Context(), c); err != nil || ran.Load() != 1200 {
		t.Errorf("other settings, and only %d were checked, %v", ran.Load()-1000, err)
	}
	c.State.Close()
}

// TestAWorkersFailureIsNoDefectOfATask: the failure is reported, and the check
// is repeated later.
func TestAWorkersFailureIsNoDefectOfATask(t *testing.T) {
	c := config(1, func(context.Context, string) (schema.Result, error) {
		return schema.Result{Status: schema.StatusDead, Fault: schema.Faultf("sandbox", schema.CodeInternal, schema.WhoSandbox, "gone")}, nil
	})
	for range 2 {
		var err error
		if c.State, err = taskcheck.Open(filepath.Join(t.TempDir(), "new"), ""); err != nil {
			t.Fatal(err)
		}
		reports, err := taskcheck.Run(t.Context(), c)
		c.State.Close()
		if err != nil || reports[0].OK || reports[0].Recalled || reports[0].Defects[0].Cause != taskcheck.CauseUndecided {
			t.Fatalf("%+v, %v", reports, err)
		}
	}
	broken := errors.New("no server")
	c = config(50, func(context.Context, string) (schema.Result, error) { return schema.Result{}, broken })
	if reports, err := taskcheck.Run(t.Context(), c); !errors.Is(err, broken) || len(reports) > 0 {
		t.Errorf("%d reports, %v", len(reports), err)
	}
}

// TestATaskIsNotFineIfItsFilesCannotBeUnpacked: it may have a solution that should run.
func TestATaskIsNotFineIfItsFilesCannotBeUnpacked(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	if reports, err := taskcheck.Run(t.Context(), config(1, zero)); !errors.Is(err, fs.ErrNotExist) || len(reports) > 0 {
		t.Errorf("%+v, %v", reports, err)
	}
}

// TestRewardsWithoutAHeadlineAreADefect: neither run shows if the task is solved.
func TestRewardsWithoutAHeadlineAreADefect(t *testing.T) {
	c := config(1, func(context.Context, string) (schema.Result, error) {
		return schema.Result{Status: schema.StatusDone, Rewards: map[string]float64{"a": 1, "b": 0}}, nil
	})
	reports, err := taskcheck.Run(t.Context(), c)
	if err != nil || len(reports) != 1 || len(reports[0].Defects) != 1 {
		t.Fatalf("%+v, %v", reports, err)
	}
	if d := reports[0].Defects[0]; d.Cause != taskcheck.CauseNoNumber || d.Message != "none of the 2 rewards is the headline: name it reward, or name it in turngate.reward_key" {
		t.Errorf("got %+v", d)
	}
}

func TestNoMoreTasksAreInMemoryThanRun(t *testing.T) {
	var loaded, most atomic.Int64
	c := config(60, func(ctx context.Context, agent string) (schema.Result, error) {
		loaded.Add(-1)
		return zero(ctx, agent)
	})
	load := c.Load
	c.Load = func(dir string) (*tasks.Task, error) {
		n := loaded.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		return load(dir)
	}
	if _, err := taskcheck.Run(t.Context(), c); err != nil || most.Load() > 4 {
		t.Errorf("%d at once, %v", most.Load(), err)
	}
}
