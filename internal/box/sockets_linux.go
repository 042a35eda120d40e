package box

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// listeningHere lists the listening sockets of this process's network.
func listeningHere() ([]netip.AddrPort, error) {
	all := []netip.AddrPort{}
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list the ports: %w", err)
		}
		found, err := listening(data)
		if err != nil {
			return nil, fmt.Errorf("list the ports: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// listening reads the listening sockets from a file such as /proc/net/tcp.
func listening(table []byte) (all []netip.AddrPort, err error) {
	const listen = "0A"
	lines := bufio.NewScanner(bytes.NewReader(table))
	for first := true; lines.Scan(); first = false {
		fields := strings.Fields(lines.Text())
		if first || len(fields) < 4 || fields[3] != listen {
			continue
		}
		a, err := socketAddress(fields[1])
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, lines.Err()
}

// socketAddress reads an address such as 0100007F:1F90. The kernel writes each 32 bits in
// the byte order of the host.
func socketAddress(text string) (netip.AddrPort, error) {
	address, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	n, perr := strconv.ParseUint(port, 16, 16)
	if err = errors.Join(err, perr); err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("the address %q is not valid", text)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, ok := netip.AddrFromSlice(raw)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("the address %q is not valid", text)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}
