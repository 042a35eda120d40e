package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Needs are the parts of a request that decide which workers can run it.
// Requests with equal needs can be run by the same workers.
type Needs struct {
	Backends    []string `json:"backends"` // of the agent's and the verifiers' sandboxes, sorted
	Agent       string   `json:"agent"`
	Networks    []string `json:"networks,omitempty"`
	Upstream    string   `json:"upstream,omitempty"` // of the model
	Proxied     bool     `json:"proxied,omitempty"`  // the mode needs Upstream
	Routes      []string `json:"routes,omitempty"`   // upstreams of the gate's routes, sorted
	GPUs        int      `json:"gpus,omitempty"`
	CPUs        float64  `json:"cpus,omitempty"`
	MemoryBytes int64    `json:"memory_bytes,omitempty"`
	DiskBytes   int64    `json:"disk_bytes,omitempty"`
	Pids        int64    `json:"pids,omitempty"`
}

// Needs returns the needs of a request. Of each limit it has the highest figure
// of the request's sandboxes, because a worker's cap is for one sandbox.
func (r *Request) Needs() Needs {
	n := Needs{Agent: r.Agent.Name, Networks: r.Networks()}
	for _, s := range r.sandboxes() {
		cpus, memory := s.needs()
		n.Backends = append(n.Backends, s.Backend)
		n.CPUs, n.MemoryBytes = max(n.CPUs, cpus), max(n.MemoryBytes, memory)
		n.DiskBytes, n.Pids, n.GPUs = max(n.DiskBytes, s.DiskBytes), max(n.Pids, s.Pids), max(n.GPUs, s.GPUs)
	}
	slices.Sort(n.Backends)
	n.Backends = slices.Compact(n.Backends)
	if n.Proxied = r.Mode != "" && r.Mode != ModeGate; n.Proxied {
		n.Upstream = r.Model.Upstream
	}
	for _, route := range r.Gate.Routes {
		if route.Upstream != "" {
			n.Routes = append(n.Routes, route.Upstream)
		}
	}
	slices.Sort(n.Routes)
	n.Routes = slices.Compact(n.Routes)
	return n
}

// String describes the needs in a few words.
func (n *Needs) String() string {
	parts := []string{"agent " + n.Agent, "sandbox " + strings.Join(n.Backends, " and ")}
	add := func(set bool, text string) {
		if set {
			parts = append(parts, text)
		}
	}
	add(len(n.Networks) > 0, "network "+strings.Join(n.Networks, " and "))
	add(n.Proxied, "upstream "+n.Upstream)
	add(len(n.Routes) > 0, "upstreams "+strings.Join(n.Routes, ", "))
	add(n.GPUs > 0, fmt.Sprintf("%d GPUs", n.GPUs))
	add(n.CPUs > 0, fmt.Sprintf("%v cpus", n.CPUs))
	add(n.MemoryBytes > 0, fmt.Sprintf("%d MiB of memory", n.MemoryBytes>>20))
	add(n.DiskBytes > 0, fmt.Sprintf("%d MiB of disk", n.DiskBytes>>20))
	add(n.Pids > 0, fmt.Sprintf("%d processes", n.Pids))
	return strings.Join(parts, ", ")
}

// Lacks names the first thing that the request asks for and the offer does not
// have; nil when the worker can run it.
func (o *Offer) Lacks(r *Request) error {
	n := r.Needs()
	return o.Meets(&n)
}

// Meets names the first need that the offer does not meet; nil if it meets all.
func (o *Offer) Meets(n *Needs) error {
	for _, l := range []struct {
		field string
		value any
		lacks bool
		want  string
	}{
		{"sandbox.backend", strings.Join(n.Backends, " and "), !subset(n.Backends, o.Backends), "one of " + list(o.Backends)},
		{"agent.name", n.Agent, !slices.Contains(o.Agents, n.Agent), "one that is installed there: " + list(o.Agents) + "; `turngate agent install " + n.Agent + "` adds one"},
		{"sandbox.network", strings.Join(n.Networks, " and "), !subset(n.Networks, o.Networks), "none" + also(o.Networks)},
		{"model.upstream", n.Upstream, n.Proxied && !slices.Contains(o.Upstreams, n.Upstream), "one of " + list(o.Upstreams)},
		{"sandbox.gpus", n.GPUs, n.GPUs > o.GPUs, fmt.Sprintf("at most %d", o.GPUs)},
		{"sandbox.cpus", n.CPUs, o.CPUs > 0 && n.CPUs > o.CPUs, fmt.Sprintf("at most %v", o.CPUs)},
		{"sandbox.memory_bytes", n.MemoryBytes, o.MemoryBytes > 0 && n.MemoryBytes > o.MemoryBytes, fmt.Sprintf("at most %d", o.MemoryBytes)},
		{"sandbox.disk_bytes", n.DiskBytes, o.DiskBytes > 0 && n.DiskBytes > o.DiskBytes, fmt.Sprintf("at most %d", o.DiskBytes)},
		{"sandbox.pids", n.Pids, o.Pids > 0 && n.Pids > o.Pids, fmt.Sprintf("at most %d", o.Pids)},
		{"gate.routes", strings.Join(n.Routes, ", "), !subset(n.Routes, o.Upstreams), "the upstreams " + list(o.Upstreams)},
	} {
		if l.lacks {
			return invalid(l.field, l.value, "this worker offers "+l.want)
		}
	}
	for _, name := range n.Backends {
		if why, fails := o.Failing[name]; fails {
			return fmt.Errorf("no %s sandbox can be made for now: %s", name, why)
		}
	}
	return nil
}

// AllWork returns the offer of the time when all backends work again.
func (o Offer) AllWork() *Offer {
	o.Failing = nil
	return &o
}

// sandboxes returns the agent's sandbox and the sandboxes of separate verifiers.
func (r *Request) sandboxes() []*SandboxChoice {
	out := []*SandboxChoice{&r.Sandbox}
	for _, v := range r.verifiers() {
		if v.Separate != nil {
			out = append(out, v.Separate)
		}
	}
	return out
}

// needs returns the cpus and bytes of memory of all containers: the sandbox's figures, or the
// side-cars' alone where these are higher.
func (s *SandboxChoice) needs() (cpus float64, memory int64) {
	for i := range s.Services {
		cpus += s.Services[i].CPUs
		memory += s.Services[i].MemoryBytes
	}
	return max(cpus, s.CPUs), max(memory, s.MemoryBytes)
}

func subset(wanted, offered []string) bool {
	return !slices.ContainsFunc(wanted, func(w string) bool { return !slices.Contains(offered, w) })
}

func list(names []string) string {
	if len(names) == 0 {
		return "(none)"
	}
	return strings.Join(names, ", ")
}

func also(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ", " + strings.Join(names, ", ")
}
