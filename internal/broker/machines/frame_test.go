package machines

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
	for _, one := range []frame{{kind: kindData, data: []byte("abc")}, {kind: kindData, seq: 3, ack: 9, credit: 1}, {kind: kindAgain, seq: 1 << 63}, {kind: kindEnd, data: encodeEnd(schema.LineEnd{})}, {kind: kindReset}, {kind: kindOpen, ack: 1}} {
		f.Add(one.encode(), one.encode())
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		local, other, err := pair()
		harness.Must(t, err)
		defer other.Close()
		l := newLine(local, DefaultTiming(), func(b []byte) {
			if _, err := decode(b); err != nil {
				t.Errorf("the line sends %q: %v", b, err)
			}
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.run(ctx, func() schema.LineEnd { return schema.LineEnd{} })
		}()
		for _, b := range [][]byte{first, second, bytes.Clone(first)} {
			m, err := decode(b)
			if err != nil {
				continue
			}
			if again := m.encode(); !bytes.Equal(again, b) {
				t.Errorf("%q is encoded as %q", b, again)
			}
			l.receive(m)
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
