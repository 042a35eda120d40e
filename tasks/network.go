package tasks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// networkConfig is the network of an environment, the agent or the verifier.
type networkConfig struct {
	NetworkMode  string   `toml:"network_mode"`
	AllowedHosts []string `toml:"allowed_hosts"`
}

// networkNote is the end of the note about an environment without a network mode.
const networkNote = ".network_mode is not set: the default is no-network here and public in Harbor"

// WithoutNetworkNotes returns the notes of a task without the ones about the
// default network, for a submitter that has chosen the network.
func WithoutNetworkNotes(notes []string) []string {
	return slices.DeleteFunc(slices.Clone(notes), func(n string) bool { return strings.HasSuffix(n, networkNote) })
}

// network reads the network settings of a table of task.toml. The network is ""
// if the table has none.
func (t *Task) network(at string, n networkConfig) (network string, allow []string) {
	modes := map[string]string{"": "", "no-network": schema.NetworkNone, "public": schema.NetworkOpen, "allowlist": schema.NetworkAllowlist}
	network, ok := modes[n.NetworkMode]
	if !ok {
		t.problem(&Error{t.Dir, at + ".network_mode", fmt.Sprintf("%q is not valid: want public, no-network or allowlist", n.NetworkMode)})
	}
	if network != schema.NetworkAllowlist && len(n.AllowedHosts) > 0 {
		t.problem(&Error{t.Dir, at + ".allowed_hosts", fmt.Sprintf(`%q: only with network_mode = "allowlist"`, strings.Join(n.AllowedHosts, ", "))})
		return network, nil
	}
	for i, entry := range n.AllowedHosts {
		normal, err := schema.NormalHost(fmt.Sprintf("%s.allowed_hosts[%d]", at, i), entry)
		if err != nil {
			t.problem(&Error{t.Dir, at + ".allowed_hosts", err.Error()})
			continue
		}
		allow = append(allow, normal)
	}
	return network, allow
}
