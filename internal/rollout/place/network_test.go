package place

import (
	"testing"

	"github.com/turngate/turngate/schema"
)

// TestNetworksWithinOthers: a process that an agent left may run on in a network that
// reaches no more than the agent's.
func TestNetworksWithinOthers(t *testing.T) {
	none, open := network{kind: schema.NetworkNone}, network{kind: schema.NetworkOpen}
	list := func(hosts ...string) network { return network{schema.NetworkAllowlist, hosts} }
	for _, tt := range []struct {
		now, agents network
		want        bool
	}{
		{none, none, true}, {network{}, none, true}, {none, open, true}, {none, list("a"), true}, {open, open, true}, {list("a"), list("a", "b"), true}, {list("b", "a"), list("a", "b"), true}, {list(), list("a"), true},
		{open, none, false}, {open, network{}, false}, {open, list("a"), false}, {list("a"), none, false}, {list("a", "b"), list("a"), false}, {list("a.b"), list("*.b"), false},
		{list("127.0.0.1"), open, false}, // the proxy is in the worker, and may reach what the sandbox does not
	} {
		if got := tt.now.within(tt.agents); got != tt.want {
			t.Errorf("%v in %v: %t", tt.now, tt.agents, got)
		}
	}
}
