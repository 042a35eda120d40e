package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// sandboxFlags change a task's settings of its sandbox.
type sandboxFlags struct {
	network     string
	allowHost   []string
	cpus        float64
	memory      string
	disk        string
	pids        int64
	agentEnv    []string
	verifierEnv []string
}

func (f *sandboxFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.network, "network", "", "network of every phase: none, open or allowlist (default: the task's, else none)")
	fl.StringArrayVar(&f.allowHost, "allow-host", nil, "host name, *.domain, IP address or range that --network allowlist lets through (repeatable)")
	fl.Float64Var(&f.cpus, "cpus", 0, "limit of CPUs; refused if it cannot be enforced (default: the task's)")
	fl.StringVar(&f.memory, "memory", "", "limit of memory, such as 2G; refused if it cannot be enforced (default: the task's)")
	fl.StringVar(&f.disk, "disk", "", "limit of written bytes, such as 10G; refused if it cannot be enforced (default: the task's)")
	fl.Int64Var(&f.pids, "pids", 0, "limit of processes; refused if it cannot be enforced (default: the worker's)")
	fl.StringArrayVar(&f.agentEnv, "agent-env", nil, "variable of the agent, as NAME (its value here) or NAME=VALUE (repeatable)")
	fl.StringArrayVar(&f.verifierEnv, "verifier-env", nil, "variable of the verifier, as NAME (its value here) or NAME=VALUE (repeatable)")
}

// apply changes a task's request according to the flags.
func (f *sandboxFlags) apply(r *schema.Request) error {
	agent, aerr := variables("--agent-env", f.agentEnv)
	verifier, verr := variables("--verifier-env", f.verifierEnv)
	if err := usageOf(f.limits(&r.Sandbox), f.networks(r), aerr, verr); err != nil {
		return err
	}
	r.Agent.Env = merged(r.Agent.Env, agent)
	if r.Verify != nil {
		v := *r.Verify
		v.Env = merged(v.Env, verifier)
		r.Verify = &v
	}
	r.Steps = slices.Clone(r.Steps)
	for i := range r.Steps {
		if r.Steps[i].Verify != nil {
			v := *r.Steps[i].Verify
			v.Env = merged(v.Env, verifier)
			r.Steps[i].Verify = &v
		}
	}
	return nil
}

// check returns all errors in these flags.
func (f *sandboxFlags) check() error {
	var r schema.Request
	return f.apply(&r)
}

func (f *sandboxFlags) limits(s *schema.SandboxChoice) error {
	var wrong []error
	for _, size := range []struct {
		flag, text, name string
		to               *int64
	}{{"--memory", f.memory, schema.LimitMemory, &s.MemoryBytes}, {"--disk", f.disk, schema.LimitDisk, &s.DiskBytes}} {
		if size.text == "" {
			continue
		}
		n, err := tasks.ParseSize(size.text)
		if err != nil || n == 0 {
			wrong = append(wrong, fmt.Errorf("%s: %q is not valid: want a size above 0 such as 512M or 4G", size.flag, size.text))
			continue
		}
		*size.to = n
		s.Strict = append(slices.Clip(s.Strict), size.name)
	}
	wrong = append(wrong, atLeast("cpus", f.cpus, 0), atLeast("pids", f.pids, 0))
	if f.cpus > 0 {
		s.CPUs, s.Strict = f.cpus, append(slices.Clip(s.Strict), schema.LimitCPUs)
	}
	if f.pids > 0 {
		s.Pids, s.Strict = f.pids, append(slices.Clip(s.Strict), schema.LimitPids)
	}
	return errors.Join(wrong...)
}

func (f *sandboxFlags) networks(r *schema.Request) error {
	var wrong []error
	if len(f.allowHost) > 0 && f.network != schema.NetworkAllowlist {
		wrong = append(wrong, errors.New("--allow-host: only with --network allowlist"))
	}
	if f.network == "" {
		return errors.Join(wrong...)
	}
	wrong = append(wrong, oneOf("network", f.network, schema.NetworkNone, schema.NetworkOpen, schema.NetworkAllowlist))
	r.Task.Notes = tasks.WithoutNetworkNotes(r.Task.Notes)
	r.Sandbox.Network, r.Sandbox.Allow = f.network, nil
	for _, entry := range f.allowHost {
		normal, err := schema.NormalHost("--allow-host", entry)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		r.Sandbox.Allow = append(r.Sandbox.Allow, normal)
	}
	r.Agent.Network, r.Agent.Allow = "", nil
	if r.Verify != nil {
		v := *r.Verify
		v.Network, v.Allow = "", nil
		if v.Separate != nil {
			s := *v.Separate
			s.Network, s.Allow = r.Sandbox.Network, r.Sandbox.Allow
			v.Separate = &s
		}
		r.Verify = &v
	}
	r.Steps = slices.Clone(r.Steps)
	for i := range r.Steps {
		r.Steps[i].Network, r.Steps[i].Allow = "", nil
		if r.Steps[i].Verify != nil {
			v := *r.Steps[i].Verify
			v.Network, v.Allow = "", nil
			r.Steps[i].Verify = &v
		}
	}
	return errors.Join(wrong...)
}

// variables reads NAME=VALUE or NAME. The value of a NAME alone comes from the
// environment of this process, so that a secret need not be an argument.
func variables(flag string, list []string) (map[string]string, error) {
	var wrong []error
	out := map[string]string{}
	for _, kv := range list {
		name, value, ok := strings.Cut(kv, "=")
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				wrong = append(wrong, fmt.Errorf("%s: the variable %s is not set here", flag, name))
				continue
			}
		}
		if name == "" {
			wrong = append(wrong, fmt.Errorf("%s: %q is not valid: want NAME or NAME=VALUE", flag, kv))
		}
		out[name] = value
	}
	return out, errors.Join(wrong...)
}

// merged returns the union of base and more, where more takes precedence. It does
// not change base.
func merged(base, more map[string]string) map[string]string {
	if len(more) == 0 {
		return base
	}
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, more)
	return out
}

// networksOf returns a line about the networks of the rollouts.
func networksOf(requests []schema.Request) string {
	counts := map[string]int{}
	for i := range requests {
		names := requests[i].Networks()
		if len(names) == 0 {
			names = []string{schema.NetworkNone}
		}
		counts[strings.Join(names, " and ")]++
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		what := map[string]string{
			schema.NetworkNone: "no network", schema.NetworkOpen: "the open network", schema.NetworkAllowlist: "the hosts of its allowlist only",
			schema.NetworkOpen + " and " + schema.NetworkAllowlist: "the open network in some phases, an allowlist in others",
		}[name]
		parts = append(parts, fmt.Sprintf("%s: %s", plural(counts[name], "rollout"), what))
	}
	return "network of " + strings.Join(parts, "; ") + " (--network changes it)"
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
