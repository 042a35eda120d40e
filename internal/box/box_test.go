package box

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a socket.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	one, other, err := kernel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, f := range []*os.File{one, other} {
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { conns[i].Close() })
	}
	return conns[0], conns[1]
}

// shake runs both ends of a handshake.
func shake(t *testing.T, worker, box []byte) (workerErr, boxErr error) {
	t.Helper()
	a, b := pair(t)
	done := make(chan error, 1)
	go func() { done <- handshake(b, box, roleBox) }()
	workerErr = handshake(a, worker, roleWorker)
	return workerErr, <-done
}

func TestHandshakeProvesTheSecretBothWays(t *testing.T) {
	if w, b := shake(t, []byte("secret"), []byte("secret")); w != nil || b != nil {
		t.Fatalf("worker %v, box %v", w, b)
	}
	for _, wrong := range []string{"", "Secret", "secret "} {
		w, b := shake(t, []byte("secret"), []byte(wrong))
		if !errors.Is(w, errStranger) || !errors.Is(b, errStranger) {
			t.Errorf("%q: worker %v, box %v", wrong, w, b)
		}
	}
}

// An echo of the nonce and the proof proves nothing, because each side's proof
// contains its role.
func TestHandshakeIsNotFooledByAnEcho(t *testing.T) {
	a, b := pair(t)
	go func() {
		defer b.Close()
		buf := make([]byte, 1024)
		for {
			n, err := b.Read(buf)
			if err != nil {
				return
			}
			if _, err := b.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	if err := handshake(a, []byte("secret"), roleWorker); !errors.Is(err, errStranger) {
		t.Fatalf("got %v", err)
	}
}

func TestTheClockDoesNotCountTheFreezer(t *testing.T) {
	c := newClock()
	rang := 0
	c.after(3*time.Second, func() { rang++ })
	stop := c.after(2*time.Second, func() { t.Error("a stopped alarm rang") })
	stop()
	c.pause(true)
	for range 100 {
		c.advance(time.Second)
	}
	c.pause(false)
	c.advance(2 * time.Second)
	if rang != 0 {
		t.Fatal("it rang early")
	}
	c.advance(time.Second)
	c.advance(time.Second)
	if rang != 1 {
		t.Fatalf("it rang %d times", rang)
	}
}

// NewClient waits for a silent box until its context ends.
func TestABoxThatDoesNotSpeakIsGivenUp(t *testing.T) {
	late := errors.New("too late")
	ctx, cancel := Within(t.Context(), 50*time.Millisecond, late)
	defer cancel()
	a, b := pair(t)
	if _, err := NewClient(ctx, a, []byte("secret"), "/"); !errors.Is(err, late) {
		t.Fatalf("got %v", err)
	}
	_ = b.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, b); err != nil {
		t.Fatalf("its connection was not closed: %v", err)
	}
}

func TestEnvironmentsMerge(t *testing.T) {
	got := merge([]string{"A=1", "B=2"}, []string{"B=3", "C="}, []string{"A=x=y"})
	if len(got) != 3 || got[0] != "A=x=y" || got[1] != "B=3" || got[2] != "C=" || lookupEnv(got, "A") != "x=y" {
		t.Fatalf("got %q", got)
	}
	got = merge([]string{"NO_PROXY=of.image", "A=1"}, []string{"NO_PROXY=web", "no_proxy=web"}, []string{"NO_PROXY=localhost,web"})
	if want := []string{"NO_PROXY=of.image,web,localhost", "A=1", "no_proxy=of.image,web,localhost"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestBrokenFramesEndAStream reads streams without an end, with frames that are
// cut or too long, and with frames after the end.
func TestBrokenFramesEndAStream(t *testing.T) {
	data := func(text string) []byte { return append([]byte{frameData, 0, 0, 0, byte(len(text))}, text...) }
	end := []byte{frameEOF, 0, 0, 0, 0}
	for name, tt := range map[string]struct {
		stream []byte
		want   string
		err    error
	}{
		"whole":                 {slices.Concat(data("a"), data(""), data("b"), end), "ab", nil},
		"after the end":         {slices.Concat(data("a"), end, data("b"), end), "a", nil},
		"no end":                {slices.Concat(data("a"), data("b")), "ab", io.ErrUnexpectedEOF},
		"cut in a head":         {append(data("a"), frameData, 0, 0), "a", io.ErrUnexpectedEOF},
		"cut in a body":         {append(data("a"), frameData, 0, 0, 0, 2, 'b'), "a", io.ErrUnexpectedEOF},
		"too long":              {append(data("a"), frameData, 0xff, 0xff, 0xff, 0xff), "a", io.ErrUnexpectedEOF},
		"another kind, no data": {slices.Concat(data("a"), []byte{frameStdout, 0, 0, 0, 1, 'x'}, data("b"), end), "ab", nil},
		"empty":                 {nil, "", io.ErrUnexpectedEOF},
	} {
		r := &dataReader{f: newFrameReader(bytes.NewReader(tt.stream))}
		got, err := io.ReadAll(r)
		if string(got) != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
		if _, again := r.Read(make([]byte, 1)); tt.err != nil && !errors.Is(again, tt.err) || tt.err == nil && !errors.Is(again, io.EOF) {
			t.Errorf("%s: then %v", name, again)
		}
	}
}

func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	w := &frameWriter{w: &b}
	if err := errors.Join(w.write(frameData, []byte("data")), w.write(frameEOF, nil), w.json(frameOK, header{Op: opRead})); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte{frameData, 0xff, 0xff, 0xff, 0xff})
	f.Add(b.Bytes()[:7])                               // cut
	f.Add(slices.Concat(b.Bytes()[9:], b.Bytes()[:9])) // the end comes first
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := io.ReadAll(&dataReader{f: newFrameReader(bytes.NewReader(data))}); err == nil && !bytes.Contains(data, []byte{frameEOF}) {
			t.Errorf("%q without an end", got)
		}
		r := newFrameReader(bytes.NewReader(data))
		for {
			kind, payload, err := r.next()
			if err != nil {
				return
			}
			if kind == frameFail {
				_ = failed(&header{}, payload)
			}
		}
	})
}
