package schema

import (
	"fmt"
	"slices"
	"strings"
)

// Presence tells who is there to take rollouts, and which.
type Presence struct {
	V        int    `json:"v"`
	Worker   string `json:"worker"`
	Instance string `json:"instance"`
	Version  string `json:"version,omitempty"`
	Slots    int    `json:"slots"`
	Draining bool   `json:"draining,omitempty"`
	Offer    Offer  `json:"offer"`
	Running  []ID   `json:"running,omitempty"`
}

// Offer is what a worker can give to a rollout. A limit of 0 means any.
type Offer struct {
	Backends    []string `json:"backends"`
	Agents      []string `json:"agents"`             // installed ones
	Networks    []string `json:"networks,omitempty"` // besides none
	GPUs        int      `json:"gpus,omitempty"`     // of one rollout; 0: none
	CPUs        float64  `json:"cpus,omitempty"`
	MemoryBytes int64    `json:"memory_bytes,omitempty"`
	DiskBytes   int64    `json:"disk_bytes,omitempty"`
	Images      []string `json:"images,omitempty"`    // warm ones
	Upstreams   []string `json:"upstreams,omitempty"` // that requests of ModeProxy and ModeBlack can name
}

// Lacks names the first thing that the request asks for and the offer does not
// have; nil when the worker can run it.
func (o *Offer) Lacks(r *Request) error {
	s := &r.Sandbox
	for _, l := range []struct {
		field string
		value any
		lacks bool
		want  string
	}{
		{"sandbox.backend", s.Backend, !slices.Contains(o.Backends, s.Backend), "one of " + list(o.Backends)},
		{"agent.name", r.Agent.Name, !slices.Contains(o.Agents, r.Agent.Name), "one that is installed there: " + list(o.Agents) + "; `turngate agent install " + r.Agent.Name + "` adds one"},
		{"sandbox.network", s.Network, s.Network != "" && s.Network != NetworkNone && !slices.Contains(o.Networks, s.Network), "none" + also(o.Networks)},
		{"model.upstream", r.Model.Upstream, r.Mode != "" && r.Mode != ModeGate && !slices.Contains(o.Upstreams, r.Model.Upstream), "one of " + list(o.Upstreams)},
		{"sandbox.gpus", s.GPUs, s.GPUs > o.GPUs, fmt.Sprintf("at most %d", o.GPUs)},
		{"sandbox.cpus", s.CPUs, o.CPUs > 0 && s.CPUs > o.CPUs, fmt.Sprintf("at most %v", o.CPUs)},
		{"sandbox.memory_bytes", s.MemoryBytes, o.MemoryBytes > 0 && s.MemoryBytes > o.MemoryBytes, fmt.Sprintf("at most %d", o.MemoryBytes)},
		{"sandbox.disk_bytes", s.DiskBytes, o.DiskBytes > 0 && s.DiskBytes > o.DiskBytes, fmt.Sprintf("at most %d", o.DiskBytes)},
		{"gate.routes", r.Gate.Routes, !o.answers(r.Gate.Routes), "the engines " + list(o.Upstreams)},
	} {
		if l.lacks {
			return invalid(l.field, l.value, "this worker offers "+l.want)
		}
	}
	return nil
}

// answers reports whether every engine that calls are sent to is offered.
func (o *Offer) answers(routes map[string]Route) bool {
	for _, r := range routes {
		if r.Upstream != "" && !slices.Contains(o.Upstreams, r.Upstream) {
			return false
		}
	}
	return true
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

// Validate checks the presence.
func (p *Presence) Validate() error { return CheckToken("worker", p.Worker) }

// What a Control asks a worker to do.
const (
	ControlCancel   = "cancel"    // end this rollout: its state says cancelling
	ControlGiveBack = "give_back" // the state names you, your presence does not
	ControlTake     = "take"      // run this request, which the sender cannot
)

// Control is a word from one worker to another.
type Control struct {
	V       int    `json:"v"`
	Do      string `json:"do"`
	ID      ID     `json:"id"`
	Attempt int    `json:"attempt,omitempty"`

	// Of take: the queue message as it came, and where it is settled.
	Subject string `json:"subject,omitempty"`
	Ack     string `json:"ack,omitempty"`
	Request []byte `json:"request,omitempty"`
}

// Validate checks the message.
func (c *Control) Validate() error {
	if err := checkOneOf("do", c.Do, ControlCancel, ControlGiveBack, ControlTake); err != nil {
		return err
	}
	_, err := ParseID(string(c.ID))
	return err
}
