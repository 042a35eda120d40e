package schema_test

import (
	"slices"
	"testing"

	"github.com/turngate/turngate/schema"
)

// FuzzNormalHost checks that the normal form of a normal form is the same.
func FuzzNormalHost(f *testing.F) {
	for _, s := range []string{"pypi.org", "*.Debian.ORG.", "192.0.2.0/24", "::ffff:1.2.3.4", "2001:DB8::/32", "a..b", "*.1.2.3.4", "https://x", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		normal, err := schema.NormalHost("allow", s)
		if err != nil {
			return
		}
		again, err := schema.NormalHost("allow", normal)
		if err != nil || again != normal {
			t.Errorf("%q becomes %q, and that %q, %v", s, normal, again, err)
		}
	})
}

// TestNetworksOfARequest lists the networks that a worker must offer.
func TestNetworksOfARequest(t *testing.T) {
	q := schema.Request{Sandbox: schema.SandboxChoice{Network: schema.NetworkNone}}
	if got := q.Networks(); len(got) != 0 {
		t.Errorf("none: %v", got)
	}
	q.Agent.Network = schema.NetworkAllowlist
	q.Steps = []schema.Step{{Verify: &schema.Verify{Separate: &schema.SandboxChoice{Network: schema.NetworkOpen}}}}
	if got := q.Networks(); !slices.Equal(got, []string{schema.NetworkOpen, schema.NetworkAllowlist}) {
		t.Errorf("got %v", got)
	}
	if got := q.SandboxNetworks(); slices.Contains(got, schema.NetworkOpen) {
		t.Errorf("the agent's sandbox has the network of the verifier's: %v", got)
	}
	o := schema.Offer{Backends: []string{""}, Agents: []string{""}, Networks: []string{schema.NetworkAllowlist}}
	if err := o.Lacks(&q); err == nil {
		t.Error("a worker without the open network takes it")
	}
	o.Networks = append(o.Networks, schema.NetworkOpen)
	if err := o.Lacks(&q); err != nil {
		t.Error(err)
	}
}
