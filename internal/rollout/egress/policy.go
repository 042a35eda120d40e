// Package egress is an HTTP proxy in the worker, for CONNECT and plain
// requests. Through it, processes of a sandbox without a network reach the
// hosts of an allowlist.
package egress

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Policy is an allowlist. Its zero value allows nothing.
type Policy struct {
	names  map[string]bool
	zones  []string // ".example.com" for the entry "*.example.com"
	ranges []netip.Prefix
}

// NewPolicy parses entries; schema.NormalHost describes their form.
func NewPolicy(entries []string) (*Policy, error) {
	p := &Policy{names: map[string]bool{}}
	for _, e := range entries {
		normal, err := schema.NormalHost("allow", e)
		if err != nil {
			return nil, err
		}
		if r, err := netip.ParsePrefix(normal); err == nil {
			p.ranges = append(p.ranges, r)
		} else if a, err := netip.ParseAddr(normal); err == nil {
			p.ranges = append(p.ranges, netip.PrefixFrom(a, a.BitLen()))
		} else if zone, ok := strings.CutPrefix(normal, "*"); ok {
			p.zones = append(p.zones, zone)
		} else {
			p.names[normal] = true
		}
	}
	return p, nil
}

// Host reports whether a host name is on the list. The entry *.example.com
// matches every name below example.com. Address checks addresses.
func (p *Policy) Host(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	return p.names[name] || slices.ContainsFunc(p.zones, func(zone string) bool { return strings.HasSuffix(name, zone) && len(name) > len(zone) })
}

// Address reports whether the list names an address. An entry matches an
// address of a network that is not public only if it is that address or a range
// within that network: 0.0.0.0/0 matches public addresses only.
func (p *Policy) Address(a netip.Addr) bool {
	a = a.Unmap()
	inner := inside(a)
	return slices.ContainsFunc(p.ranges, func(r netip.Prefix) bool {
		return r.Contains(a) && (inner == nil || inner.Bits() <= r.Bits())
	})
}

// reachable returns an error if the proxy must not connect to an address that a
// name resolved to.
func (p *Policy) reachable(a netip.Addr) error {
	a = a.Unmap()
	if inner := inside(a); inner != nil && !p.Address(a) {
		return fmt.Errorf("%s is in %s, which is not public; an entry of the allowlist must name that address or range itself", a, inner)
	}
	return nil
}

// inside returns the network of an address that is not public or is the
// worker's own, and nil for a public address.
func inside(a netip.Addr) *netip.Prefix {
	for _, text := range special() {
		r := netip.MustParsePrefix(text)
		if r.Contains(a) {
			return &r
		}
	}
	own, err := net.InterfaceAddrs()
	if err != nil { // treat every address as the worker's own
		all := netip.PrefixFrom(a, a.BitLen())
		return &all
	}
	for _, o := range own {
		if n, ok := o.(*net.IPNet); ok {
			if at, ok := netip.AddrFromSlice(n.IP); ok && at.Unmap() == a {
				r := netip.PrefixFrom(a, a.BitLen())
				return &r
			}
		}
	}
	return nil
}

// special lists the ranges that IANA's registries of special-purpose addresses
// (RFC 6890) exclude from public use, ranges of addresses that embed another
// address, and multicast.
func special() []string {
	return []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24",
		"192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
	}
}
