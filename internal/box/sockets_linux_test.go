package box

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

func TestListeningSocketsAreRead(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the table below is of a host with little-endian bytes")
	}
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 100 0 0 10 0
   3: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4 1 0 100 0 0 10 0
`
	var want []netip.AddrPort
	for _, text := range []string{"127.0.0.1:8080", "0.0.0.0:80", "[::1]:53"} {
		want = append(want, netip.MustParseAddrPort(text))
	}
	if got, err := listening([]byte(table)); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := listening([]byte("first\n 0: 01:x y 0A\n")); err == nil {
		t.Error("a broken address was read")
	}
	if a := reachable(netip.MustParseAddrPort("0.0.0.0:80")); a.String() != "127.0.0.1:80" {
		t.Error(a)
	}
	if a := reachable(netip.MustParseAddrPort("[::]:80")); a.String() != "[::1]:80" {
		t.Error(a)
	}
}
