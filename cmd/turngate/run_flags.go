package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// jobFlags select the tasks of a job and its folder.
type jobFlags struct {
	out        string
	runs       string
	resume     string
	rerun      []string
	retry      string
	rerunBelow string
	trust      trustFlags
	filter     []string
	exclude    []string
	limit      int
	seed       uint64
}

func (f *jobFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.out, "out", "", "folder of the new job, which must not exist (default: RUNS/TIME-NAME)")
	fl.StringVar(&f.runs, "runs", "runs", "folder of jobs")
	fl.StringVar(&f.resume, "resume", "", "folder of a job to continue: its trials without a result run, with its settings")
	fl.StringArrayVar(&f.rerun, "rerun", nil, "with --resume: run trials again if their fault has this code, or \"any\" (repeatable)")
	fl.StringVar(&f.retry, "retry", "", "run a trial again after a fault, as CAUSE=NUMBER,...: infrastructure=3,agent_timeout=1 (default: no trial; docs/jobs.md has the causes)")
	f.trust.add(fl, "with --resume: ")
	fl.StringVar(&f.rerunBelow, "rerun-below", "", "let --retry and --rerun replace results whose reward is below this number (default: only those without a reward above 0)")
	fl.StringArrayVar(&f.filter, "filter", nil, "run only tasks with a name or a folder that matches a pattern such as 'django*' (repeatable)")
	fl.StringArrayVar(&f.exclude, "exclude", nil, "do not run tasks that match a pattern (repeatable)")
	fl.IntVar(&f.limit, "limit", 0, "largest number of tasks (0: all)")
	fl.Uint64Var(&f.seed, "seed", 0, "with --limit: choose tasks at random, the same ones for the same seed (default: the first ones)")
}

func (f *jobFlags) choice(cmd *cobra.Command) jobs.Choice {
	c := jobs.Choice{Filter: f.filter, Exclude: f.exclude, Limit: f.limit}
	if cmd.Flags().Changed("seed") {
		c.Seed = &f.seed
	}
	return c
}

// check returns all errors in these flags.
func (f *jobFlags) check(cmd *cobra.Command) error {
	c := f.choice(cmd)
	var wrong []error
	for _, p := range f.filter {
		wrong = append(wrong, flagOf("filter", jobs.CheckPattern(p)))
	}
	_, err := jobs.ParseRetries(f.retry)
	wrong = append(wrong, flagOf("retry", err))
	_, err = f.rerunBound()
	wrong = append(wrong, err)
	for _, p := range f.exclude {
		wrong = append(wrong, flagOf("exclude", jobs.CheckPattern(p)))
	}
	if f.limit < 0 {
		wrong = append(wrong, fmt.Errorf("--limit: %d is not valid: want 0 or more", f.limit))
	}
	if f.resume != "" {
		return errors.Join(append(wrong, flagOf("resume", jobs.IsOwn(f.resume)))...)
	}
	if c.Seed != nil && f.limit <= 0 {
		wrong = append(wrong, errors.New("--seed: it needs --limit, the number of tasks to take"))
	}
	if len(f.rerun) > 0 {
		wrong = append(wrong, errors.New("--rerun: it needs --resume, the job to go on with"))
	}
	return errors.Join(wrong...)
}

// rerunBound returns the bound of --rerun-below, or nil.
func (f *jobFlags) rerunBound() (*float64, error) {
	if f.rerunBelow == "" {
		return nil, nil
	}
	bound, err := strconv.ParseFloat(f.rerunBelow, 64)
	if err != nil || math.IsNaN(bound) {
		return nil, fmt.Errorf("--rerun-below: %q is not valid: want a reward, such as 0.5", f.rerunBelow)
	}
	return &bound, nil
}

// reruns reports whether --rerun lets a trial with this result run again. It says which
// rewards are kept, and which are replaced.
func (f *jobFlags) reruns(say io.Writer, below *float64) func(*schema.Result) bool {
	return func(r *schema.Result) bool {
		switch {
		case !slices.Contains(f.rerun, "any") && !slices.Contains(f.rerun, r.Fault.Code):
			return false
		case jobs.Keeps(r, below):
			fmt.Fprintf(say, "%s: its reward %s is kept, in spite of the fault %s: --rerun-below replaces it\n", oneLine(r.Task, 80), progress.Reward(r.Reward), r.Fault.Code)
			return false
		case r.Reward != nil:
			fmt.Fprintf(say, "%s: its reward %s, with the fault %s, is replaced\n", oneLine(r.Task, 80), progress.Reward(r.Reward), r.Fault.Code)
		}
		return true
	}
}

// dir returns the folder of a new job.
func (f *jobFlags) dir(list []jobs.Task, agent string) string {
	if f.out != "" {
		return f.out
	}
	name := filepath.Base(list[0].Dir)
	if len(list) > 1 && list[0].Source != "" {
		name = list[0].Source
	}
	return filepath.Join(f.runs, time.Now().Format("20060102-150405")+"-"+token(name)+"-"+token(agent)+"-"+randomHex(2))
}

// asked returns the flags that a job records, with their values: all flags that
// were set, without the flags for the job's folder and for output.
func asked(flags *pflag.FlagSet) map[string][]string {
	out := map[string][]string{}
	flags.Visit(func(f *pflag.Flag) {
		if slices.Contains([]string{"out", "runs", "resume", "rerun", "output", "verbose", "timeout", "help", "console", "open", "console-read-only", "context", "keep-failed", "detach", "trust"}, f.Name) {
			return
		}
		out[f.Name] = valuesOf(flags, f)
	})
	return out
}

func valuesOf(flags *pflag.FlagSet, f *pflag.Flag) []string {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	if pairs, err := flags.GetStringToString(f.Name); err == nil {
		var out []string
		for _, k := range slices.Sorted(maps.Keys(pairs)) {
			out = append(out, k+"="+pairs[k])
		}
		return out
	}
	text := f.Value.String()
	switch kind, at, ok := strings.Cut(text, ":"); {
	case f.Name == "trainer" && ok && (kind == "replay" || kind == "transcript"):
		text = kind + ":" + absolute(at)
	case slices.Contains([]string{"creds", "agents", "upstreams", "task-env-file", "ssh-config"}, f.Name) && text != "":
		text = absolute(text)
	}
	return []string{text}
}

// absolute makes a path independent of the working directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// mayDiffer reports whether a resumed job may have another value of a flag.
func mayDiffer(name string) bool {
	return slices.Contains([]string{"out", "runs", "resume", "rerun", "output", "verbose", "timeout", "help", "nats", "creds", "context", "parallel", "agents", "ssh", "ssh-config", "e2b", "e2b-sandboxes", "e2b-per-minute", "prime", "prime-cpus", "prime-memory-gb", "prime-disk-gb", "prime-sandboxes", "prime-per-minute", "kubernetes", "kubernetes-config", "kubernetes-context", "kubernetes-helper-image", "kubernetes-runtime-class", "kubernetes-node-selector", "kubernetes-toleration", "kubernetes-pull-secrets", "kubernetes-gpus", "kubernetes-user-namespaces", "modal", "modal-app", "modal-sandboxes", "modal-per-minute", "local-images", "sandbox-usd-per-hour", "max-cost", "max-tokens-total", "retry", "rerun-below", "console", "open", "console-read-only", "keep-failed", "detach", "trust"}, name)
}

// again sets the flags to the job's values and refuses flags that contradict
// them. The flags for the server, the agents' folder, parallelism and output may
// differ.
func again(flags *pflag.FlagSet, kept map[string][]string) error {
	var wrong []error
	flags.Visit(func(f *pflag.Flag) {
		if mayDiffer(f.Name) {
			if f.Name == "out" {
				wrong = append(wrong, errors.New("--out: the job has its folder, that of --resume"))
			}
			return
		}
		if now, then := valuesOf(flags, f), kept[f.Name]; !slices.Equal(now, then) {
			was := "it was not set"
			if then != nil {
				was = fmt.Sprintf("it was %q", strings.Join(then, ", "))
			}
			wrong = append(wrong, fmt.Errorf("--%s: %q contradicts the job, where %s; leave it out, or start a new job", f.Name, strings.Join(now, ", "), was))
		}
	})
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		f := flags.Lookup(name)
		if f == nil {
			wrong = append(wrong, fmt.Errorf("--%s: the job has it, and this version does not know it", name))
			continue
		}
		if f.Changed {
			continue
		}
		for _, v := range kept[name] {
			if err := flags.Set(name, v); err != nil {
				wrong = append(wrong, fmt.Errorf("--%s of the job: %w", name, err))
			}
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return &exitError{exitUsage, err}
	}
	return nil
}
