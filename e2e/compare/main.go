// Command compare runs Harbor and turngate on the same tasks with the same
// agent, one after the other, and prints both rewards and both times. It fails if
// rewards differ or are missing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

type options struct {
	tasks, agent, harbor, compose, turngate string
	n, parallel                             int
	cold                                    bool
}

func main() {
	var o options
	harbor := ""
	if p := os.Getenv("TURNGATE_HARBOR_PYTHON"); p != "" {
		harbor = filepath.Join(filepath.Dir(p), "harbor")
	}
	flag.StringVar(&o.tasks, "tasks", "", "folder of task directories")
	flag.StringVar(&o.agent, "agent", "nop", "agent of both: nop or oracle")
	flag.IntVar(&o.n, "n", 8, "how many tasks, in the order of their names (0: all)")
	flag.IntVar(&o.parallel, "j", 1, "tasks at once")
	flag.StringVar(&o.harbor, "harbor", harbor, "harbor's program (default: beside TURNGATE_HARBOR_PYTHON)")
	flag.StringVar(&o.compose, "compose", os.Getenv("TURNGATE_COMPOSE"), "program of docker compose 2, where Docker has none (default: TURNGATE_COMPOSE)")
	flag.StringVar(&o.turngate, "turngate", "bin/turngate", "turngate's program")
	flag.BoolVar(&o.cold, "cold", false, "do not build the images first")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	same, err := o.run(ctx, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(2)
	}
	if !same {
		os.Exit(1)
	}
}

func (o *options) run(ctx context.Context, out io.Writer) (same bool, err error) {
	if o.tasks == "" || o.harbor == "" {
		return false, errors.New("say where the tasks are (-tasks) and where Harbor is (-harbor or TURNGATE_HARBOR_PYTHON)")
	}
	for _, program := range []*string{&o.turngate, &o.harbor} {
		if *program, err = filepath.Abs(*program); err != nil {
			return false, err
		}
	}
	work, err := os.MkdirTemp("", "turngate-compare-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(work)
	names, err := o.copyTasks(filepath.Join(work, "tasks"))
	if err != nil {
		return false, err
	}
	if !o.cold {
		if _, _, err := o.byTurngate(ctx, work, "warm"); err != nil {
			return false, err
		}
	}
	theirs, theirTime, err := o.byHarbor(ctx, work)
	if err != nil {
		return false, err
	}
	ours, ourTime, err := o.byTurngate(ctx, work, "turngate")
	if err != nil {
		return false, err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TASK\tHARBOR\tTURNGATE\t")
	same = true
	for _, name := range names {
		a, b, verdict := theirs[name], ours[name], ""
		switch {
		case len(a) == 0 || len(b) == 0: // two tasks without a reward do not agree
			same, verdict = false, "no reward"
		case !maps.Equal(a, b):
			same, verdict = false, "differs"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, text(a), text(b), verdict)
	}
	fmt.Fprintf(w, "seconds, %d at once\t%.1f\t%.1f\t%.0f times\n", o.parallel, theirTime.Seconds(), ourTime.Seconds(), theirTime.Seconds()/ourTime.Seconds())
	return same, w.Flush()
}

// text formats rewards. The usual single one has no name.
func text(rewards map[string]float64) string {
	if len(rewards) == 0 {
		return "none"
	}
	if r, ok := rewards["reward"]; ok && len(rewards) == 1 {
		return fmt.Sprint(r)
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(rewards)) {
		list = append(list, fmt.Sprintf("%s=%v", name, rewards[name]))
	}
	return strings.Join(list, " ")
}

// copyTasks copies the tasks for each program, so that it does not see files that
// the other leaves in a task.
func (o *options) copyTasks(to string) (names []string, err error) {
	list, err := os.ReadDir(o.tasks)
	if err != nil {
		return nil, err
	}
	for _, d := range list {
		if _, err := os.Stat(filepath.Join(o.tasks, d.Name(), "instruction.md")); err != nil {
			continue
		}
		if err := os.CopyFS(filepath.Join(to, d.Name()), os.DirFS(filepath.Join(o.tasks, d.Name()))); err != nil {
			return nil, err
		}
		if names = append(names, d.Name()); len(names) == o.n {
			break
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no task", o.tasks)
	}
	return names, nil
}

func (o *options) byTurngate(ctx context.Context, work, job string) (map[string]map[string]float64, time.Duration, error) {
	job = filepath.Join(work, job)
	cmd := exec.CommandContext(ctx, o.turngate, "run", "--sandbox", "docker", "--agent", o.agent, "-j", fmt.Sprint(o.parallel), "--out", job, filepath.Join(work, "tasks"))
	cmd.Dir = work
	start := time.Now()
	said, err := cmd.CombinedOutput()
	took := time.Since(start)
	if err != nil && cmd.ProcessState.ExitCode() != 1 { // 1: a trial has a fault
		return nil, 0, fmt.Errorf("turngate: %w: %s", err, tail(string(said)))
	}
	out, err := rewardsOf(job)
	if err != nil {
		return nil, 0, fmt.Errorf("turngate: %w: %s", err, tail(string(said)))
	}
	return out, took, nil
}

func (o *options) byHarbor(ctx context.Context, work string) (map[string]map[string]float64, time.Duration, error) {
	jobs := filepath.Join(work, "harbor")
	cmd := exec.CommandContext(ctx, o.harbor, "run", "-p", filepath.Join(work, "tasks"), "-a", o.agent, "-n", fmt.Sprint(o.parallel), "-o", jobs, "--job-name", "job", "-q", "-y")
	cmd.Dir, cmd.Env = work, os.Environ()
	if o.compose != "" {
		plugins := filepath.Join(work, "docker", "cli-plugins")
		if err := os.MkdirAll(plugins, 0o755); err != nil {
			return nil, 0, err
		}
		if err := os.Symlink(o.compose, filepath.Join(plugins, "docker-compose")); err != nil {
			return nil, 0, err
		}
		cmd.Env = append(cmd.Env, "DOCKER_CONFIG="+filepath.Dir(plugins))
	}
	start := time.Now()
	said, err := cmd.CombinedOutput()
	took := time.Since(start)
	if err != nil {
		return nil, 0, fmt.Errorf("harbor: %w: %s", err, tail(string(said)))
	}
	out, err := rewardsOf(filepath.Join(jobs, "job"))
	return out, took, err
}

// rewardsOf reads the rewards of a job's trials, by the folders of their tasks.
// Both programs write a job in the same layout.
func rewardsOf(job string) (map[string]map[string]float64, error) {
	files, err := filepath.Glob(filepath.Join(job, "*", "result.json"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no trial with a result", job)
	}
	out := map[string]map[string]float64{}
	for _, p := range files {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		var r struct {
			Task struct {
				Path string `json:"path"`
			} `json:"task_id"`
			Verifier *struct {
				Rewards map[string]float64 `json:"rewards"`
			} `json:"verifier_result"`
		}
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		if r.Verifier != nil {
			out[filepath.Base(r.Task.Path)] = r.Verifier.Rewards
		}
	}
	return out, nil
}

func tail(s string) string { return s[max(len(s)-2000, 0):] }
