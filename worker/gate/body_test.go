package gate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker/gate"
	"github.com/turngate/turngate/worker/gate/gatetest"
)

// conversation is a chat body with a few large messages, each named.
func conversation(names ...string) []byte {
	var items []string
	for _, n := range names {
		items = append(items, fmt.Sprintf(`{"role":"user","content":%q}`, n+strings.Repeat(" "+n, 8<<10)))
	}
	return []byte(`{"model":"m","messages":[` + strings.Join(items, ",") + `],"t":1}`)
}

// checkRead holds what a decoder that remembers made of a chat body to what a
// fresh one makes of it.
func checkRead(t *testing.T, got gate.Request, err error, body []byte) {
	t.Helper()
	want, wantErr := decodeFresh(gate.Chat{}, body)
	if err != nil || wantErr != nil || !reflect.DeepEqual(got.Call, want.Call) {
		t.Fatalf("%.100s is another call: %v, fresh: %v", body, err, wantErr)
	}
}

// TestBodiesComeInPieces of any size, and go on from any earlier one.
func TestBodiesComeInPieces(t *testing.T) {
	bodies := [][]byte{
		conversation("a", "b", "c"),
		conversation("a", "b", "c", "d", "e", "f", "g"), // longer than what is read at once
		conversation("a", "b", "x"),                     // beside it
		conversation("a", "b", "c", "d", "e", "f", "g", "h", "i"),
		conversation("a", "b", "x", "y"),
		conversation("a", "b", "x", "y"), // the same
		conversation("a", "b", "x"),      // the beginning of one
		conversation("z"),
		conversation("a", "b", "c", "d", "e", "f", "g", "h"),
	}
	for name, pieces := range map[string]func(io.Reader) io.Reader{
		"whole": func(r io.Reader) io.Reader { return r },
		"bytes": iotest.OneByteReader,
		"half":  iotest.HalfReader,
		"end":   iotest.DataErrReader, // says that it ended with the last piece
	} {
		t.Run(name, func(t *testing.T) {
			d := gate.Chat{}.Decoder(gate.NewMemory(0))
			for i, body := range bodies {
				read, err := d.Read(pieces(bytes.NewReader(body)), len(body))
				if err != nil || read.Len() != len(body) {
					t.Fatalf("body %d: read %d of %d: %v", i, read.Len(), len(body), err)
				}
				got, err := d.Decode(nil, read)
				checkRead(t, got, err, body)
			}
		})
	}
}

// TestABodyThatBreaksOff costs nothing of what was known.
func TestABodyThatBreaksOff(t *testing.T) {
	first, second := conversation("a", "b", "c"), conversation("a", "b", "c", "d")
	for _, at := range []int{0, 1, len(first) / 2, len(first) - 1, len(second) - 1} {
		d := gate.Chat{}.Decoder(gate.NewMemory(0))
		before, err := decodeWith(d, nil, first)
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
		after, err := decodeWith(d, nil, second)
		checkRead(t, after, err, second)
		if at > len(first)/2 && &after.Call.Messages[0][0] != &before.Call.Messages[0][0] {
			t.Errorf("broken off at %d: what was known is forgotten", at)
		}
	}
}

// TestConversationsSideBySide go on in the memory of what each of them was.
func TestConversationsSideBySide(t *testing.T) {
	d := gate.Chat{}.Decoder(gate.NewMemory(0))
	read := func(names ...string) []json.RawMessage {
		t.Helper()
		body := conversation(names...)
		got, err := decodeWith(d, nil, body)
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
	read("a", "h", "c") // each message stands somewhere, at its place, but not in one body
}

// TestASlowBodyHoldsNobodyUp although it is compared with what the session
// knows.
func TestASlowBodyHoldsNobodyUp(t *testing.T) {
	d := gate.Chat{}.Decoder(gate.NewMemory(0))
	if _, err := decodeWith(d, nil, conversation("a", "b")); err != nil {
		t.Fatal(err)
	}
	in, out := io.Pipe()
	slow := conversation("a", "b", "c")
	type result struct {
		body gate.Body
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
		got, err := decodeWith(d, nil, body)
		checkRead(t, got, err, body)
	}
	if _, err := out.Write(slow[100:]); err != nil {
		t.Fatal(err)
	}
	r := <-read
	if r.err != nil {
		t.Fatal(r.err)
	}
	got, err := d.Decode(nil, r.body)
	checkRead(t, got, err, slow)
}

// TestTheSameBodyElsewhereIsAnotherCall since its answer has another form.
func TestTheSameBodyElsewhereIsAnotherCall(t *testing.T) {
	f := geminiFixture()
	release := make(chan struct{})
	m := &gatetest.Model{Answer: func(ctx context.Context, _ schema.Call, _ func(schema.Frame) error) (schema.Reply, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return gatetest.Text("ok"), nil
	}}
	h := gatetest.New(t, f, m, schema.GateOptions{}, func(c *gate.Config) { c.Timing.Equal = time.Hour })
	body := f.Body("hi", false)
	var all sync.WaitGroup
	defer all.Wait()
	defer close(release)
	for path, begins := range map[string]string{
		"/v1beta/models/policy:generateContent":               "{",
		"/v1beta/models/policy:streamGenerateContent":         "[",
		"/v1beta/models/policy:streamGenerateContent?alt=sse": "data: ",
	} {
		all.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.URL+path, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+h.Session.Key())
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			answer, err := io.ReadAll(res.Body)
			if err != nil || !strings.HasPrefix(string(answer), begins) || !strings.Contains(string(answer), `"text":"ok"`) {
				t.Errorf("%s: %v %q", path, err, answer)
			}
		})
	}
	gatetest.Eventually(t, "three calls", func() bool { return m.Calls.Load() == 3 })
}
