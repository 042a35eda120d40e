package schema

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// AgentNetwork returns the network of the agent in a step, and its allowlist.
// step is nil for a task without steps.
func (r *Request) AgentNetwork(step *Step) (network string, allow []string) {
	if step != nil && step.Network != "" {
		return step.Network, step.Allow
	}
	return phaseNetwork(r.Agent.Network, r.Agent.Allow, &r.Sandbox)
}

// VerifyNetwork returns the network of a verifier, and its allowlist.
func (r *Request) VerifyNetwork(v *Verify) (network string, allow []string) {
	if v.Separate != nil {
		return phaseNetwork(v.Network, v.Allow, v.Separate)
	}
	return phaseNetwork(v.Network, v.Allow, &r.Sandbox)
}

func phaseNetwork(network string, allow []string, s *SandboxChoice) (string, []string) {
	if network == "" {
		return cmp.Or(s.Network, NetworkNone), s.Allow
	}
	return network, allow
}

// Networks lists the networks, except none, that the sandboxes and phases of
// the request need.
func (r *Request) Networks() []string {
	asked := r.SandboxNetworks()
	for _, v := range r.verifiers() {
		if v.Separate != nil {
			network, _ := r.VerifyNetwork(v)
			asked = append(asked, network, v.Separate.Network)
		}
	}
	var out []string
	for _, n := range []string{NetworkOpen, NetworkAllowlist} {
		if slices.Contains(asked, n) {
			out = append(out, n)
		}
	}
	return out
}

// SandboxNetworks lists the networks of the agent's own sandbox and of each
// phase in it, with repetitions.
func (r *Request) SandboxNetworks() []string {
	agent, _ := r.AgentNetwork(nil)
	out := []string{cmp.Or(r.Sandbox.Network, NetworkNone), agent}
	for i := range r.Steps {
		agent, _ := r.AgentNetwork(&r.Steps[i])
		out = append(out, agent)
	}
	for _, v := range r.verifiers() {
		if v.Separate == nil {
			network, _ := r.VerifyNetwork(v)
			out = append(out, network)
		}
	}
	return out
}

func (r *Request) verifiers() []*Verify {
	var out []*Verify
	if r.Verify != nil {
		out = append(out, r.Verify)
	}
	for i := range r.Steps {
		if v := r.Steps[i].Verify; v != nil {
			out = append(out, v)
		}
	}
	return out
}

func checkNetwork(field, network string, allow []string) error {
	if network != "" {
		if err := checkOneOf(field+".network", network, NetworkNone, NetworkAllowlist, NetworkOpen); err != nil {
			return err
		}
	}
	if network != NetworkAllowlist && len(allow) > 0 {
		return invalid(field+".allow", strings.Join(allow, ","), "entries only with network "+NetworkAllowlist)
	}
	if err := checkTextList(field+".allow", allow, maxName); err != nil {
		return err
	}
	for i, entry := range allow {
		normal, err := NormalHost(fmt.Sprintf("%s.allow[%d]", field, i), entry)
		if err != nil {
			return err
		}
		if normal != entry {
			return invalid(fmt.Sprintf("%s.allow[%d]", field, i), entry, "want its normal form, "+normal)
		}
	}
	return nil
}

// NormalHost checks one entry of an allowlist and returns its normal form: a
// host name, a domain with a leading "*.", an IP address, or a range of
// addresses with zero host bits. field names the entry in the error.
func NormalHost(field, entry string) (string, error) {
	const want = "want a host name, *.domain, an IP address or a range such as 192.0.2.0/24; no scheme, port or path"
	bad := func() (string, error) { return "", invalid(field, entry, want) }
	host := strings.TrimRight(strings.ToLower(strings.TrimSpace(entry)), ".")
	switch {
	case host == "" || strings.ContainsAny(host, "%[]"):
		return bad()
	case strings.Contains(host, "/"):
		p, err := netip.ParsePrefix(host)
		if err != nil || p != p.Masked() {
			return bad()
		}
		return p.String(), nil
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String(), nil
	}
	name, wild := strings.CutPrefix(host, "*.")
	if _, err := netip.ParseAddr(name); wild && err == nil {
		return bad()
	}
	if len(name) > 253 {
		return bad()
	}
	for label := range strings.SplitSeq(name, ".") {
		if !isHostLabel(label) {
			return bad()
		}
	}
	return host, nil
}

func isHostLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
