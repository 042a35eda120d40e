package docker_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// TestAContainerLeavesItsNetworkAndComesBack lists the container's interfaces.
// Its loopback forward works throughout.
func TestAContainerLeavesItsNetworkAndComesBack(t *testing.T) {
	b, image, _ := backend(t)
	s := spec(image)
	s.Network = schema.NetworkOpen
	s.Folders = []sandboxes.Folder{{Name: "shared"}} // a group without a network of its own
	sb, err := b.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close(t.Context())
	for _, on := range []bool{true, false, false, true} {
		if err := sb.Online(t.Context(), on); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		p, err := sb.Start(t.Context(), sandboxes.Cmd{Args: []string{"cat", "/proc/net/dev"}, Stdout: &out, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if exit, err := p.Wait(); err != nil || !exit.OK() {
			t.Fatalf("%+v, %v", exit, err)
		}
		if got := bytes.Contains(out.Bytes(), []byte("eth")); got != on || !bytes.Contains(out.Bytes(), []byte("lo:")) {
			t.Errorf("on %v: %s", on, out.Bytes())
		}
	}
}
