package line

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// FuzzReceive gives a line the messages of a hostile side: it keeps to its bounds, and
// comes to its end.
func FuzzReceive(f *testing.F) {
	for _, one := range []Frame{{Kind: KindData, Data: []byte("abc")}, {Kind: KindData, Seq: 3, Ack: 9, Credit: 1}, {Kind: KindAgain, Seq: 1 << 63}, {Kind: KindEnd, Data: encodeEnd(schema.LineEnd{})}, {Kind: KindReset}, {Kind: KindOpen, Ack: 1}} {
		f.Add(one.Encode(), one.Encode())
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		local, other, err := Pair()
		harness.Must(t, err)
		defer other.Close()
		l := New(local, DefaultTiming(), func(b []byte) {
			if _, err := Decode(b); err != nil {
				t.Errorf("the line sends %q: %v", b, err)
			}
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.Run(ctx, func() schema.LineEnd { return schema.LineEnd{} })
		}()
		for _, b := range [][]byte{first, second, bytes.Clone(first)} {
			m, err := Decode(b)
			if err != nil {
				continue
			}
			if again := m.Encode(); !bytes.Equal(again, b) {
				t.Errorf("%q is encoded as %q", b, again)
			}
			l.Receive(m)
		}
		l.mu.Lock()
		if l.got > l.written+window || l.next > l.sent || l.acked > l.sent || len(l.waiting) > window {
			t.Errorf("got %d, written %d, sent %d of %d, acknowledged %d", l.got, l.written, l.next, l.sent, l.acked)
		}
		l.mu.Unlock()
		cancel(errors.New("the test ends"))
		<-done
		_, _ = io.Copy(io.Discard, other) // the other end is closed
	})
}
