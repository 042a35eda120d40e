package docker

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"strings"

	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/sandboxes"
)

const (
	subnetBits  = 27 // room for 29 containers
	subnetTries = 256
)

// networks makes the networks of sandboxes with side-cars.
type networks struct {
	api *client.Client
	all netip.Prefix // the range of their addresses
}

// open makes a network for the containers of one sandbox. Unless the
// network is open, its containers reach nothing outside: it has no route out
// and no name server, and the host has no address in it.
func (n networks) open(ctx context.Context, name string, labels map[string]string, open bool) error {
	noIPv6 := false
	o := network.CreateOptions{Driver: "bridge", Internal: !open, EnableIPv6: &noIPv6, Labels: labels, Options: map[string]string{}}
	if !open {
		// The bridge of an internal network normally has an address of the host.
		// Through it a container would reach all listeners of the host.
		o.Options["com.docker.network.bridge.inhibit_ipv4"] = "true"
	}
	var err error
	for try := range uint32(subnetTries) {
		o.IPAM = &network.IPAM{Config: []network.IPAMConfig{{Subnet: subnet(n.all, name, try).String()}}}
		if _, err = n.api.NetworkCreate(ctx, name, o); err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), "overlap") && !strings.Contains(err.Error(), "conflicts") {
			break
		}
	}
	return fmt.Errorf("make network %s in %s: %w", name, n.all, err)
}

// subnet returns the candidate range of a network for the given try. It derives
// from a hash of the name, so that few networks collide.
func subnet(all netip.Prefix, name string, try uint32) netip.Prefix {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	count := uint32(1) << (subnetBits - all.Bits())
	base := all.Masked().Addr().As4()
	at := binary.BigEndian.Uint32(base[:]) + (h.Sum32()+try)%count<<(32-subnetBits)
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], at)
	return netip.PrefixFrom(netip.AddrFrom4(out), subnetBits)
}

// checkSubnets returns an error if a range is not suitable for side-car
// networks.
func checkSubnets(all netip.Prefix) error {
	if !all.IsValid() || !all.Addr().Is4() || all.Bits() < 8 || all.Bits() > 24 {
		return fmt.Errorf("%s is no range for the networks of side-cars: want IPv4 and a prefix of 8 to 24 bits, such as %s", all, sandboxes.DefaultSubnets)
	}
	return nil
}
