package desktop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jezek/xgb/xproto"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/xvfb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// send gives an order to a desktop, as a line does.
func send(t *testing.T, d *Desktop, order string) (a Answer, picture []byte) {
	t.Helper()
	ours, theirs := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- d.Serve(t.Context(), theirs) }()
	defer ours.Close()
	_, err := ours.Write([]byte(order + "\n"))
	harness.Must(t, err)
	a, picture, err = read(ours)
	harness.Must(t, err)
	harness.Must(t, <-served)
	return a, picture
}

func must(t *testing.T, d *Desktop, o Order) (a Answer, picture []byte) {
	t.Helper()
	order, err := json.Marshal(o)
	harness.Must(t, err)
	if a, picture = send(t, d, string(order)); a.Code != "" {
		t.Fatalf("%s: %+v", order, a)
	}
	return a, picture
}

func decode(t *testing.T, picture []byte) image.Image {
	t.Helper()
	m, err := png.Decode(bytes.NewReader(picture))
	harness.Must(t, err)
	return m
}

// A person sees a window, in its size and smaller, and types into it: letters with shift,
// characters that the keyboard lacks, and chords.
func TestLookAndType(t *testing.T) {
	screen := xvfb.Start(t)
	d := New(screen.Display, true)
	harness.Must(t, d.Check(t.Context()))
	a, empty := must(t, d, Order{Op: Screenshot})
	if m := decode(t, empty); a.Width != xvfb.Width || a.Height != xvfb.Height || m.Bounds() != image.Rect(0, 0, xvfb.Width, xvfb.Height) {
		t.Errorf("%+v, a picture of %v", a, m.Bounds())
	}
	typed := screen.Terminal(t)
	must(t, d, Order{Op: Click, X: 60, Y: 60})
	var full []byte
	harness.Eventually(t, "the window", 5*time.Minute, func() bool {
		_, full = must(t, d, Order{Op: Screenshot})
		return !bytes.Equal(full, empty)
	})
	a, small := must(t, d, Order{Op: Screenshot, MaxSide: 100})
	if m := decode(t, small); a.Width != xvfb.Width || m.Bounds() != image.Rect(0, 0, 100, 75) {
		t.Errorf("%+v, a small picture of %v", a, m.Bounds())
	}
	const text = "Hello, World! #{}~|\\ é€ß日本"
	must(t, d, Order{Op: Type, Text: text + "\n"})
	harness.Eventually(t, "the text", 5*time.Minute, func() bool { return typed() == text+"\n" })
	must(t, d, Order{Op: Key, Keys: []string{"a", "B", "space", "x", "ctrl+u", "o", "k", "plus", "Return"}})
	harness.Eventually(t, "the keys", 5*time.Minute, func() bool { return typed() == text+"\nok+\n" })
	harness.Eventually(t, "the text on the screen", 5*time.Minute, func() bool {
		_, after := must(t, d, Order{Op: Screenshot})
		return !bytes.Equal(after, full)
	})
	for _, o := range []Order{{Op: Move, X: 5, Y: 5}, {Op: Drag, X: 10, Y: 10, ToX: 200, ToY: 20}, {Op: Scroll, X: 60, Y: 60, Direction: "up"}, {Op: Click, X: 99, Y: 74, MaxSide: 100, Button: "middle", Count: 2}} {
		must(t, d, o)
	}
}

// A point of a small screenshot is a point of the display.
func TestThePointsOfASmallScreenshot(t *testing.T) {
	screen := xvfb.Start(t)
	d := New(screen.Display, true)
	for _, c := range []struct{ o, native Order }{
		{Order{X: 0, Y: 0, MaxSide: 100}, Order{X: 4, Y: 4}},
		{Order{X: 99, Y: 74, MaxSide: 100}, Order{X: 796, Y: 596}},
		{Order{X: 799, Y: 599}, Order{X: 799, Y: 599}},
	} {
		c.o.Op = Move
		must(t, d, c.o)
		s, err := open(t.Context(), screen.Display)
		harness.Must(t, err)
		at, err := s.pointer()
		s.close()
		if err != nil || at != image.Pt(c.native.X, c.native.Y) {
			t.Errorf("%+v: the pointer is at %v, want %d, %d: %v", c.o, at, c.native.X, c.native.Y, err)
		}
	}
}

// A keyboard with no free key left uses those again that it has bound, unless another
// program has changed them.
func TestKeysAreBoundAgain(t *testing.T) {
	screen := xvfb.Start(t)
	d := New(screen.Display, true)
	var text []rune
	for n := range rune(300) {
		if text = append(text, '一'+n); len(text) == 5 {
			must(t, d, Order{Op: Type, Text: string(text)})
			text = nil
		}
	}
	s, err := open(t.Context(), screen.Display)
	harness.Must(t, err)
	defer s.close()
	taken := d.keyboard.bound[0]
	harness.Must(t, xproto.ChangeKeyboardMappingChecked(s.conn, 1, taken.code, 1, []xproto.Keysym{xproto.Keysym(symbolOf('z'))}).Check())
	must(t, d, Order{Op: Type, Text: "あ"})
	l, err := s.layout()
	harness.Must(t, err)
	if at, ok := l.find(symbolOf('あ')); !ok || at.code == taken.code {
		t.Errorf("%+v, %t: want another key than %d", at, ok, taken.code)
	}
}

// Nothing is pressed late in an operation, or after its end.
func TestNothingIsPressedLate(t *testing.T) {
	screen := xvfb.Start(t)
	late, cancel := context.WithTimeout(t.Context(), inputTime)
	defer cancel()
	s, err := open(late, screen.Display)
	harness.Must(t, err)
	defer s.close()
	harness.Must(t, s.input())
	if err := s.clicks(1, 1); err == nil || !strings.Contains(err.Error(), "too slow") {
		t.Errorf("late: %v", err)
	}
	cancel()
	if err := s.clicks(1, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// A pixel of a smaller picture is the mean of its area.
func TestShrink(t *testing.T) {
	from := image.NewRGBA(image.Rect(0, 0, 3, 2))
	for i, grey := range []uint8{0, 100, 200, 20, 120, 220} {
		from.Set(i%3, i/3, color.RGBA{grey, grey, 7, 0xff})
	}
	to := shrink(from, 2, 1)
	for x, grey := range []uint8{43, 177} { // two thirds of one column, and one of the next
		if got, want := to.RGBAAt(x, 0), (color.RGBA{grey, grey, 7, 0xff}); got != want {
			t.Errorf("the pixel %d: %v, want %v", x, got, want)
		}
	}
}

// A picture of another size than the answer tells, or none, is an error.
func TestAPictureThatIsWrong(t *testing.T) {
	var picture bytes.Buffer
	harness.Must(t, png.Encode(&picture, image.NewRGBA(image.Rect(0, 0, 40, 30))))
	for _, c := range []struct {
		width, height, maxSide int
		picture                []byte
		ok                     bool
	}{
		{40, 30, 0, picture.Bytes(), true}, {80, 60, 40, picture.Bytes(), true},
		{80, 60, 0, picture.Bytes(), false}, {0, 0, 0, picture.Bytes(), false}, {40, 30, 0, nil, false}, {40, 30, 0, []byte("no picture"), false},
	} {
		if err := checkPicture(Answer{Width: c.width, Height: c.height}, c.picture, c.maxSide); (err == nil) != c.ok {
			t.Errorf("%d x %d, %d: %v", c.width, c.height, c.maxSide, err)
		}
	}
}

// An X server that gives wrong answers is an error.
func TestADisplayThatAnswersWrong(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	go func() {
		defer theirs.Close()
		_, _ = theirs.Read(make([]byte, 64))
		_, _ = theirs.Write([]byte{1, 0, 11, 0, 0, 0, 0, 0}) // a setup of no bytes
	}()
	if _, err := greet(ours); err == nil || !strings.Contains(err.Error(), "wrong answer") {
		t.Errorf("got %v", err)
	}
}

// Without the owner's consent nothing is used, and the picture stays.
func TestConsent(t *testing.T) {
	screen := xvfb.Start(t)
	d := New(screen.Display, false)
	harness.Must(t, d.Check(t.Context()))
	s, err := open(t.Context(), screen.Display)
	harness.Must(t, err)
	defer s.close()
	before, err := s.pointer()
	harness.Must(t, err)
	for _, order := range []string{`{"op":"move","x":1,"y":1}`, `{"op":"click","x":1,"y":1}`, `{"op":"drag"}`, `{"op":"type","text":"a"}`, `{"op":"key","keys":["a"]}`, `{"op":"scroll","direction":"up"}`} {
		if a, _ := send(t, d, order); a.Code != CodeConsent || !strings.Contains(a.Error, "--desktop-input") {
			t.Errorf("%s: %+v", order, a)
		}
	}
	if after, err := s.pointer(); err != nil || after != before {
		t.Errorf("the pointer moved from %v to %v, %v", before, after, err)
	}
	must(t, d, Order{Op: Screenshot})
}

// A display that goes away is a failure with a reason; one that comes again works.
func TestADisplayThatGoesAway(t *testing.T) {
	screen := xvfb.Start(t)
	d := New(screen.Display, true)
	must(t, d, Order{Op: Screenshot})
	screen.Stop()
	if a, _ := send(t, d, `{"op":"screenshot"}`); a.Code != CodeDisplay || !strings.Contains(a.Error, screen.Display) {
		t.Errorf("without a display: %+v", a)
	}
	if err := d.Check(t.Context()); err == nil {
		t.Error("a display that is gone")
	}
}

// A display that hangs does not hold an order beyond its context.
func TestADisplayThatHangs(t *testing.T) {
	screen := xvfb.Start(t)
	screen.Freeze(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := New(screen.Display, false).Check(ctx); err == nil {
		t.Error("a display that hangs was found")
	}
}

// A display with a cookie refuses clients without it.
func TestPermission(t *testing.T) {
	host, err := os.Hostname()
	harness.Must(t, err)
	entry := func(number, cookie string) []byte {
		var b []byte
		for _, part := range []string{host, number, authProtocol, cookie} {
			b = append(append(b, byte(len(part)>>8), byte(len(part))), part...)
		}
		return append([]byte{1, 0}, b...)
	}
	const right, wrong = "0123456789abcdef", "fedcba9876543210"
	cookies := filepath.Join(t.TempDir(), "cookies")
	harness.Must(t, os.WriteFile(cookies, entry("0", right), 0o600)) // the server takes the cookies of all displays
	screen := xvfb.Start(t, "-auth", cookies)
	number, err := ParseDisplay(screen.Display)
	harness.Must(t, err)
	mine := filepath.Join(t.TempDir(), "mine")
	t.Setenv("XAUTHORITY", mine)
	for name, c := range map[string]struct {
		cookie string
		ok     bool
	}{"right": {right, true}, "wrong": {wrong, false}} {
		harness.Must(t, os.WriteFile(mine, append(entry("65000", wrong), entry(number, c.cookie)...), 0o600))
		if err := New(screen.Display, false).Check(t.Context()); (err == nil) != c.ok {
			t.Errorf("the %s cookie: %v", name, err)
		}
	}
}

// TestOperationsAreCounted: each operation has a label of its own, also one that fails.
func TestOperationsAreCounted(t *testing.T) {
	m := telemetry.New("test")
	d := New(":64999", false) // no server has this display
	d.Answered = m.Lines(1).Operated
	var want []string
	for op, order := range map[string]string{
		Move: `"x":1`, Click: `"x":1`, Drag: `"to_x":1`, Type: `"text":"a"`, Key: `"keys":["a"]`, Scroll: `"direction":"up"`, Screenshot: `"max_side":100`, "other": `"x":"1"`,
	} {
		outcome := CodeConsent
		switch op {
		case Screenshot:
			outcome = CodeDisplay
		case "other":
			outcome = CodeInvalid
		}
		send(t, d, `{"op":"`+op+`",`+order+`}`)
		want = append(want, `turngate_machine_desktop_operations_total{operation="`+op+`",outcome="`+outcome+`"} 1`)
	}
	testenv.ShowsMetrics(t, m, want...)
}

// Each field has bounds, and a wrong one is named before anything happens.
func TestOrdersThatAreRefused(t *testing.T) {
	d := New(":0", true) // is not reached
	for order, want := range map[string]string{
		`{`:                                           "order",
		`{"op":"reboot"}`:                             "op: ",
		`{"op":"screenshot","max_side":8}`:            "max_side: ",
		`{"op":"move","x":-1}`:                        "x: ",
		`{"op":"drag","to_y":40000}`:                  "to_y: ",
		`{"op":"click","button":"4"}`:                 "button: ",
		`{"op":"click","count":4}`:                    "count: ",
		`{"op":"type"}`:                               "text: ",
		`{"op":"type","text":"\u001b[2J"}`:            "text: ",
		`{"op":"key"}`:                                "keys: ",
		`{"op":"key","keys":["ctrl+"]}`:               "keys: ",
		`{"op":"key","keys":["hyper+x"]}`:             "keys: ",
		`{"op":"scroll","direction":"north"}`:         "direction: ",
		`{"op":"scroll","direction":"up","steps":51}`: "steps: ",
		fmt.Sprintf(`{"op":"type","text":"%s"}`, strings.Repeat("a", MaxText+1)): "text: ",
	} {
		if a, _ := send(t, d, order); a.Code != CodeInvalid || !strings.HasPrefix(a.Error, want) {
			t.Errorf("%.80s: %+v", order, a)
		}
	}
	for _, name := range []string{"", "0", "host:0", ":0.1", "/tmp/x:0"} {
		var invalid *InvalidError
		if _, err := ParseDisplay(name); !errors.As(err, &invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// The orders and answers of the vectors equal this package's.
func TestVectors(t *testing.T) {
	data, err := os.ReadFile("../../schema/testdata/lines.json")
	harness.Must(t, err)
	var v struct {
		Desktop struct{ Orders, Answers []json.RawMessage }
	}
	harness.Must(t, json.Unmarshal(data, &v))
	if len(v.Desktop.Orders) < 7 || len(v.Desktop.Answers) < 3 {
		t.Fatalf("%d orders, %d answers", len(v.Desktop.Orders), len(v.Desktop.Answers))
	}
	same := func(text json.RawMessage, value any) {
		harness.Must(t, json.Unmarshal(text, value))
		got, err := json.Marshal(value)
		harness.Must(t, err)
		var want bytes.Buffer
		harness.Must(t, json.Compact(&want, text))
		if want.String() != string(got) {
			t.Errorf("%s: got %s", want.String(), got)
		}
	}
	for _, text := range v.Desktop.Orders {
		var o Order
		same(text, &o)
		harness.Must(t, o.Check())
	}
	for _, text := range v.Desktop.Answers {
		same(text, &Answer{})
	}
}
