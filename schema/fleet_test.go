package schema_test

import (
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

func TestWhyARequestIsQueued(t *testing.T) {
	r := schema.Request{Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "docker"}}
	fits := schema.Offer{Backends: []string{"docker"}, Agents: []string{"mini"}}
	for want, workers := range map[string][]schema.Capacity{
		"no worker is there":            nil,
		"no worker offers what it asks": {{Slots: 2}},
		"every worker is stopping":      {{Slots: 2, Offer: fits, Draining: true}},
		"no slot is free: the workers that could take it (2) have 3, all busy": {{Slots: 2, Busy: 2, Offer: fits}, {Slots: 1, Busy: 3, Offer: fits}, {Slots: 9}},
		"others are before it: 1 of 2 slots":                                   {{Slots: 2, Busy: 1, Offer: fits}},
	} {
		f := schema.Fleet{Workers: workers}
		if got := f.Queued(&r); !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
