package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

func TestWhyARequestIsQueued(t *testing.T) {
	r := schema.Request{Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "docker", MemoryBytes: 4 << 30}}
	fits := schema.Offer{Backends: []string{"docker"}, Agents: []string{"mini"}}
	small := fits
	small.MemoryBytes = 1 << 30
	other := schema.Offer{Backends: []string{"local"}, Agents: []string{"mini"}}
	nothing := "no worker offers what it asks:"
	backend := `: sandbox.backend: "docker" is not valid: this worker offers one of local`
	for name, c := range map[string]struct {
		want    string
		workers []schema.Capacity
	}{
		"none":     {"no worker is there", nil},
		"one":      {nothing + "\na" + backend, []schema.Capacity{{Worker: "a", Slots: 2, Offer: other}}},
		"draining": {"every worker is draining", []schema.Capacity{{Worker: "a", Slots: 2, Offer: fits, Draining: true}}},
		"each": {nothing + "\na" + backend + ";\nb: it is draining;\nc: sandbox.memory_bytes: \"4294967296\" is not valid: this worker offers at most 1073741824",
			[]schema.Capacity{{Worker: "c", Offer: small}, {Worker: "b", Offer: fits, Draining: true}, {Worker: "a", Offer: other}}},
		"many": {nothing + "\na, b, c, d and 2 more" + backend,
			[]schema.Capacity{{Worker: "f", Offer: other}, {Worker: "e", Offer: other}, {Worker: "b", Offer: other}, {Worker: "a", Offer: other}, {Worker: "c", Offer: other}, {Worker: "d", Offer: other, Draining: true}}},
		"busy": {"no slot is free: the workers that could take it (2) have 3, all busy",
			[]schema.Capacity{{Slots: 2, Busy: 2, Offer: fits}, {Slots: 1, Busy: 3, Offer: fits}, {Slots: 9, Offer: other}}},
		"full": {"no room is free: the workers that could take it (3) are busy, or their hosts are full (1): turngate worker ls has the reasons",
			[]schema.Capacity{{Slots: 2, Busy: 1, Full: true, Offer: fits}, {Slots: 2, Busy: 2, Full: true, Offer: fits}, {Slots: 1, Busy: 1, Offer: fits}, {Slots: 9, Full: true, Offer: other}}},
		"another one is full": {"others are before it: 1 of 4 slots are free", []schema.Capacity{{Slots: 2, Full: true, Offer: fits}, {Slots: 2, Busy: 1, Offer: fits}}},
		"behind":              {"others are before it: 1 of 2 slots are free", []schema.Capacity{{Slots: 2, Busy: 1, Offer: fits}}},
	} {
		f := schema.Fleet{Workers: c.workers}
		if got := f.Queued(&r); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestAFleetTellsNoSizesOfHosts: a trainer reads that a host is full, and not the text about
// its memory.
func TestAFleetTellsNoSizesOfHosts(t *testing.T) {
	f := schema.FleetOf([]schema.Presence{{Worker: "a", Full: "10 MB of its disk are free"}, {Worker: "b"}})
	if data, err := schema.Encode(&f); err != nil || !f.Workers[0].Full || f.Workers[1].Full || strings.Contains(string(data), "10 MB") {
		t.Errorf("%+v, %v", f.Workers, err)
	}
}

// TestReasonsAreBounded: many workers with long offers give a short text, and a line
// break in an offer begins no line.
func TestReasonsAreBounded(t *testing.T) {
	var f schema.Fleet
	for i := range 200 {
		agent := fmt.Sprintf("x%d\ny", i) + strings.Repeat("z", 1000)
		f.Workers = append(f.Workers, schema.Capacity{Worker: fmt.Sprintf("w%03d", i), Offer: schema.Offer{Backends: []string{"docker"}, Agents: []string{agent}}})
	}
	text := f.Unable(&schema.Needs{Backends: []string{"docker"}, Agent: "mini"})
	lines := strings.Split(text, "\n")
	if len(text) > 10_000 || len(lines) != 18 || !strings.HasPrefix(lines[16], "w015: agent.name: ") || lines[17] != "184 more reasons" {
		t.Errorf("%d bytes, %d lines: %q", len(text), len(lines), text)
	}
}
