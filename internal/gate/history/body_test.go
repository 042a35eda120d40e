package history_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/turngate/turngate/internal/gate/dialect/chat"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/internal/gate/history"
)

// conversation returns a chat body with a large message for each name.
func conversation(names ...string) []byte {
	var items []string
	for _, n := range names {
		items = append(items, fmt.Sprintf(`{"role":"user","content":%q}`, n+strings.Repeat(" "+n, 8<<10)))
	}
	return []byte(`{"model":"m","messages":[` + strings.Join(items, ",") + `],"t":1}`)
}

// checkRead compares the request of a decoder that keeps bodies with that of a
// fresh decoder.
func checkRead(t *testing.T, got history.Request, err error, body []byte) {
	t.Helper()
	want, wantErr := gatetest.Decode(chat.Dialect{}, "/", string(body))
	if err != nil || wantErr != nil || !reflect.DeepEqual(got.Call, want.Call) {
		t.Fatalf("%.100s is another call: %v, fresh: %v", body, err, wantErr)
	}
}

// TestBodiesComeInPieces reads pieces of any size, and bodies that continue any
// earlier one.
func TestBodiesComeInPieces(t *testing.T) {
	bodies := [][]byte{
		conversation("a", "b", "c"),
		conversation("a", "b", "c", "d", "e", "f", "g"), // longer than one read
		conversation("a", "b", "x"),                     // beside the first
		conversation("a", "b", "c", "d", "e", "f", "g", "h", "i"),
		conversation("a", "b", "x", "y"),
		conversation("a", "b", "x", "y"), // the same body again
		conversation("a", "b", "x"),      // the beginning of an earlier one
		conversation("z"),
		conversation("a", "b", "c", "d", "e", "f", "g", "h"),
	}
	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r },
		"bytes": iotest.OneByteReader,
		"half":  iotest.HalfReader,
		"end":   iotest.DataErrReader, // returns EOF with the last piece
	} {
		t.Run(name, func(t *testing.T) {
			d := history.NewReader(chat.Dialect{}, history.NewMemory(0), history.AsSent)
			for i, body := range bodies {
				read, err := d.Read(pieces(bytes.NewReader(body)), len(body))
				if err != nil || read.Len() != len(body) {
					t.Fatalf("body %d: read %d of %d: %v", i, read.Len(), len(body), err)
				}
				got, err := d.Decode(gatetest.Posted("/"), read)
				checkRead(t, got, err, body)
			}
		})
	}
}

// TestABodyThatBreaksOff must leave the kept bodies valid.
func TestABodyThatBreaksOff(t *testing.T) {
	first, second := conversation("a", "b", "c"), conversation("a", "b", "c", "d")
	for _, at := range []int{0, 1, len(first) / 2, len(first) - 1, len(second) - 1} {
		d := history.NewReader(chat.Dialect{}, history.NewMemory(0), history.AsSent)
		before, err := gatetest.DecodeWith(d, gatetest.Posted("/"), first)
		if err != nil {
			t.Fatal(err)
		}
		broken := errors.New("the line broke")
		for want, r := range map[error]io.Reader{
			io.ErrUnexpectedEOF: bytes.NewReader(second[:at]),
			broken:              io.MultiReader(bytes.NewReader(second[:at]), iotest.ErrReader(broken)),
		} {
			if _, err := d.Read(r, len(second)); !errors.Is(err, want) {
				t.Errorf("broken off at %d: %v, want %v", at, err, want)
			}
		}
		after, err := gatetest.DecodeWith(d, gatetest.Posted("/"), second)
		checkRead(t, after, err, second)
		if at > len(first)/2 && &after.Call.Messages[0][0] != &before.Call.Messages[0][0] {
			t.Errorf("broken off at %d: what was known is forgotten", at)
		}
	}
}

// TestConversationsSideBySide: each conversation keeps its memory while it
// grows.
func TestConversationsSideBySide(t *testing.T) {
	d := history.NewReader(chat.Dialect{}, history.NewMemory(0), history.AsSent)
	read := func(names ...string) []json.RawMessage {
		t.Helper()
		body := conversation(names...)
		got, err := gatetest.DecodeWith(d, gatetest.Posted("/"), body)
		checkRead(t, got, err, body)
		return got.Call.Messages
	}
	same := func(what string, a, b []json.RawMessage, n int) {
		t.Helper()
		for i := range n {
			if &a[i][0] != &b[i][0] {
				t.Errorf("%s: message %d was read anew", what, i)
			}
		}
	}
	first, other := read("a", "b", "c", "d", "e", "f"), read("g", "h", "c")
	again := read("a", "b", "c", "d", "e", "f", "g")
	same("the older one", first, again, 6)
	same("the newer one", other, read("g", "h", "c", "i"), 3)
	same("a title beside them", first, read("a", "title"), 1)
	same("after the title", again, read("a", "b", "c", "d", "e", "f", "g", "h"), 7)
	read("a", "h", "c") // each message is known at its place, but from different bodies
}

// TestASlowBodyDelaysNoOther: other requests are read while a slow body is
// compared with the session's bodies.
func TestASlowBodyDelaysNoOther(t *testing.T) {
	d := history.NewReader(chat.Dialect{}, history.NewMemory(0), history.AsSent)
	if _, err := gatetest.DecodeWith(d, gatetest.Posted("/"), conversation("a", "b")); err != nil {
		t.Fatal(err)
	}
	in, out := io.Pipe()
	slow := conversation("a", "b", "c")
	type result struct {
		body history.Body
		err  error
	}
	read := make(chan result)
	go func() {
		b, err := d.Read(in, len(slow))
		read <- result{b, err}
	}()
	if _, err := out.Write(slow[:100]); err != nil {
		t.Fatal(err)
	}
	for _, body := range [][]byte{conversation("a", "b", "d"), conversation("q"), conversation("a", "b", "d", "e")} {
		got, err := gatetest.DecodeWith(d, gatetest.Posted("/"), body)
		checkRead(t, got, err, body)
	}
	if _, err := out.Write(slow[100:]); err != nil {
		t.Fatal(err)
	}
	r := <-read
	if r.err != nil {
		t.Fatal(r.err)
	}
	got, err := d.Decode(gatetest.Posted("/"), r.body)
	checkRead(t, got, err, slow)
}
