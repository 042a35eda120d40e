package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// filterFlags select rollouts of a list.
type filterFlags struct {
	status []string
	group  string
	task   string
	agent  string
	label  map[string]string
	reward string
	job    string
}

func (f *filterFlags) add(fl *pflag.FlagSet) {
	fl.StringSliceVar(&f.status, "status", nil, "statuses of the rollouts, separated by commas: "+orList(statusNames()))
	fl.StringVar(&f.group, "group", "", "group of the rollouts, or a pattern such as a*")
	fl.StringVar(&f.agent, "agent", "", "agent of the rollouts, or a pattern")
	fl.StringToStringVar(&f.label, "label", nil, "label of the rollouts, as key=value (repeatable)")
	fl.StringVar(&f.reward, "reward", "", `condition of the reward, such as ">=0.5", 1 or none (not known)`)
	f.addJob(fl)
}

// addJob adds the flags of lists that are not of single rollouts.
func (f *filterFlags) addJob(fl *pflag.FlagSet) {
	fl.StringVar(&f.task, "task", "", "name of the task or of its folder, or a pattern such as django__*")
	fl.StringVar(&f.job, "job", "", "without --nats: name or path of the job's folder, or a pattern")
}

func statusNames() (out []string) {
	for _, s := range recorded.Statuses() {
		out = append(out, string(s))
	}
	return out
}

// filter returns the filter that the flags describe. onSystem: the rollouts are those of a
// running system.
func (f *filterFlags) filter(onSystem bool) (recorded.Filter, error) {
	out := recorded.Filter{Group: f.group, Task: f.task, Agent: f.agent, Job: f.job, Labels: f.label}
	var wrong []error
	for _, s := range f.status {
		if !slices.Contains(statusNames(), s) {
			wrong = append(wrong, fmt.Errorf("--status: %q is not valid: want %s", schema.Clip(s, 80), orList(statusNames())))
		}
		out.Statuses = append(out.Statuses, schema.Status(s))
	}
	for name, pattern := range map[string]string{"group": f.group, "task": f.task, "agent": f.agent, "job": f.job} {
		wrong = append(wrong, flagOf(name, jobs.CheckPattern(pattern)))
	}
	if f.reward != "" {
		var err error
		out.Reward, err = recorded.ParseReward(f.reward)
		wrong = append(wrong, flagOf("reward", err))
	}
	if onSystem && f.job != "" {
		wrong = append(wrong, errors.New("--job: the rollouts of --nats belong to no job's folder: want --group, or --runs in place of --nats"))
	}
	return out, usageOf(wrong...)
}
