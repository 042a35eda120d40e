package schema_test

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/turngate/turngate/schema"
)

// TestNeedsCoverEachSandbox checks that a separate verifier cannot ask for more
// than a worker offers: its figures are compared with the caps, as the agent's sandbox's are.
func TestNeedsCoverEachSandbox(t *testing.T) {
	offer := schema.Offer{Backends: []string{"local"}, Agents: []string{"mini"}, GPUs: 1, CPUs: 2, MemoryBytes: 1 << 30, DiskBytes: 1 << 30, Pids: 100}
	within := schema.SandboxChoice{Backend: "local", GPUs: 1, CPUs: 2, MemoryBytes: 1 << 30, DiskBytes: 1 << 30, Pids: 100}
	for field, exceed := range map[string]func(*schema.SandboxChoice){
		"":                     func(*schema.SandboxChoice) {},
		"sandbox.backend":      func(s *schema.SandboxChoice) { s.Backend = "docker" },
		"sandbox.gpus":         func(s *schema.SandboxChoice) { s.GPUs = 2 },
		"sandbox.cpus":         func(s *schema.SandboxChoice) { s.CPUs = 3 },
		"sandbox.memory_bytes": func(s *schema.SandboxChoice) { s.Services = []schema.Service{{MemoryBytes: 2 << 30}} },
		"sandbox.disk_bytes":   func(s *schema.SandboxChoice) { s.DiskBytes = 2 << 30 },
		"sandbox.pids":         func(s *schema.SandboxChoice) { s.Pids = 101 },
	} {
		for where, request := range map[string]func(schema.SandboxChoice) schema.Request{
			"agent": func(s schema.SandboxChoice) schema.Request { return schema.Request{Sandbox: s} },
			"verifier": func(s schema.SandboxChoice) schema.Request {
				return schema.Request{Sandbox: within, Verify: &schema.Verify{Separate: &s}}
			},
			"step": func(s schema.SandboxChoice) schema.Request {
				return schema.Request{Sandbox: within, Steps: []schema.Step{{Verify: &schema.Verify{Separate: &s}}}}
			},
		} {
			choice := within
			exceed(&choice)
			q := request(choice)
			q.Agent.Name = "mini"
			err := offer.Lacks(&q)
			var invalid *schema.InvalidError
			if field == "" && err != nil || field != "" && (!errors.As(err, &invalid) || invalid.Field != field) {
				t.Errorf("%s, %q above the offer: %v", where, field, err)
			}
		}
	}
}

// TestLacks reads the vectors that the Python client has, too.
func TestLacks(t *testing.T) {
	data, err := os.ReadFile("testdata/needs.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		About, Field, Value, Want string
		Request                   json.RawMessage
	}
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	offer := schema.Offer{Backends: []string{"local"}, Agents: []string{"mini", "nop"}, Networks: []string{"allowlist"}, GPUs: 1, CPUs: 2.5, MemoryBytes: 1 << 30, Pids: 100}
	for _, v := range vectors {
		q := schema.Request{Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "local"}}
		if err := json.Unmarshal(v.Request, &q); err != nil {
			t.Fatal(err)
		}
		var invalid *schema.InvalidError
		err := offer.Lacks(&q)
		switch {
		case v.Want == "" && err != nil:
			t.Errorf("%s: %v", v.About, err)
		case v.Want != "" && (!errors.As(err, &invalid) || *invalid != schema.InvalidError{Field: v.Field, Value: v.Value, Want: v.Want}):
			t.Errorf("%s: %v", v.About, err)
		}
	}
}
