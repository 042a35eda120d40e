package queue_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// A request that fills a message leaves no room for the headers of its copy. It
// fails, and so does a body of this size that cannot be read; neither keeps a slot.
func TestARequestThatFillsAMessageFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	nc := testenv.Raw(t, b.Server.URL(), b.Server.AdminCreds(), "_INBOX.test")
	dead, err := nc.SubscribeSync(subjects.DeadFilter)
	harness.Must(t, err)
	size := int(nc.MaxPayload())
	harness.Must(t, nc.Publish(subjects.Request(2, "alpha"), filled(t, harness.Request("alpha-1"), size)))
	harness.Must(t, nc.Publish(subjects.Request(2, "alpha"), bytes.Repeat([]byte{0xc1}, size)))
	harness.Must(t, nc.Flush())
	b.Submit(t, harness.Request("alpha-2"))
	if j := b.Take(t); j.Request.ID != "alpha-2" {
		t.Fatalf("got %s", j.Request.ID)
	}
	r, err := b.Broker.Records.Result(t.Context(), "alpha-1")
	harness.Must(t, err)
	if r.Status != schema.StatusFailed || r.Fault == nil || r.Fault.Code != schema.CodeTooLarge {
		t.Errorf("the large request ended as %s: %v", r.Status, r.Fault)
	}
	m, err := dead.NextMsg(10 * time.Second)
	harness.Must(t, err)
	if len(m.Data) != 256<<10 {
		t.Errorf("%d bytes of the unreadable request are kept", len(m.Data))
	}
}

// filled encodes a request with an unknown key that makes it size bytes long.
func filled(t *testing.T, r schema.Request, size int) []byte {
	t.Helper()
	data, err := schema.Encode(&r)
	harness.Must(t, err)
	const fixed, map16 = 0x80, 0xde
	var keys uint16
	switch {
	case data[0]&0xf0 == fixed:
		keys, data = uint16(data[0]&0x0f), data[1:]
	case data[0] == map16:
		keys, data = binary.BigEndian.Uint16(data[1:3]), data[3:]
	default:
		t.Fatalf("a request begins with %#x", data[0])
	}
	out := binary.BigEndian.AppendUint16([]byte{map16}, keys+1)
	out = append(append(out, data...), 0xa1, 'x', 0xc6) // the key "x" with a bin of 32-bit length
	left := size - len(out) - 4
	out = binary.BigEndian.AppendUint32(out, uint32(left))
	return append(out, make([]byte, left)...)
}
