package sandboxes

import (
	"maps"
	"slices"
	"strings"
)

// Environment lays variables over others: the last value of a name counts. The lists of
// NO_PROXY and no_proxy, hosts that are reached without a proxy, are joined: each of the
// two that is set has the hosts of all.
func Environment(layers ...map[string]string) map[string]string {
	env := map[string]string{}
	var direct []string
	for _, l := range layers {
		maps.Copy(env, l)
		direct = append(direct, l["NO_PROXY"], l["no_proxy"])
	}
	for name := range env {
		if IsNoProxy(name) {
			env[name] = NoProxy(direct)
		}
	}
	return env
}

// IsNoProxy reports whether a variable has hosts that are reached without a proxy.
func IsNoProxy(name string) bool { return name == "NO_PROXY" || name == "no_proxy" }

// NoProxy joins values of NO_PROXY, without those hosts that come twice.
func NoProxy(values []string) string {
	var hosts []string
	for _, v := range values {
		for host := range strings.SplitSeq(v, ",") {
			if host = strings.TrimSpace(host); host != "" && !slices.Contains(hosts, host) {
				hosts = append(hosts, host)
			}
		}
	}
	return strings.Join(hosts, ",")
}
