package desktop

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
	"github.com/jezek/xgb/xtest"
)

const (
	// displayTime bounds an operation on a display.
	displayTime = 30 * time.Second
	// inputTime is the time that an operation must have left to press something.
	inputTime = 5 * time.Second
)

// display is a connection to an X server of this host.
type display struct {
	conn   *xgb.Conn
	setup  *xproto.SetupInfo
	root   xproto.Window
	width  int
	height int
	stop   func() bool   // of the end with the context
	ready  func() error  // there is time to press something and to release it
	over   chan struct{} // is closed when the display sends no more events
}

// ParseDisplay returns the number of a display of this host, such as :0.
func ParseDisplay(name string) (number string, err error) {
	m := regexp.MustCompile(`^:([0-9]{1,5})(\.0)?$`).FindStringSubmatch(name)
	if m == nil {
		return "", &InvalidError{"display", name, "a display of this host, such as :0"}
	}
	return m[1], nil
}

// open connects to a display. The connection ends with the context, and after displayTime.
func open(ctx context.Context, name string) (*display, error) {
	number, err := ParseDisplay(name)
	if err != nil {
		return nil, err
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", "/tmp/.X11-unix/X"+number)
	if err != nil {
		return nil, fmt.Errorf("connect to the display %s: %w", name, err)
	}
	end := time.Now().Add(displayTime)
	if err := raw.SetDeadline(end); err != nil {
		raw.Close()
		return nil, fmt.Errorf("connect to the display %s: %w", name, err)
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	xgb.Logger.SetOutput(io.Discard) // its errors are returned, too
	conn, err := greet(&greeting{Conn: raw, cookie: cookieOf(number)})
	if err != nil {
		stop()
		raw.Close()
		return nil, fmt.Errorf("connect to the display %s: %w", name, err)
	}
	if last, ok := ctx.Deadline(); ok && last.Before(end) {
		end = last
	}
	d := &display{conn: conn, stop: stop, over: make(chan struct{}), ready: func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Until(end) < inputTime {
			return fmt.Errorf("the display is too slow: an operation has %s", displayTime)
		}
		return nil
	}}
	go d.drain()
	if err := d.look(); err != nil {
		d.close()
		return nil, fmt.Errorf("read the size of the display %s: %w", name, err)
	}
	return d, nil
}

func greet(raw net.Conn) (conn *xgb.Conn, err error) {
	defer caught(&err)
	return xgb.NewConnNet(raw)
}

// look reads the size of the display.
func (d *display) look() (err error) {
	defer caught(&err)
	d.setup = xproto.Setup(d.conn)
	d.root = d.setup.DefaultScreen(d.conn).Root
	size, err := xproto.GetGeometry(d.conn, xproto.Drawable(d.root)).Reply()
	if err != nil {
		return explain(err)
	}
	if d.width, d.height = int(size.Width), int(size.Height); d.width == 0 || d.height == 0 {
		return fmt.Errorf("it has %d x %d pixels", d.width, d.height)
	}
	return nil
}

// caught makes an error of a panic: the library panics at an answer that no X server gives.
func caught(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the display gives a wrong answer: %v", p)
	}
}

// drain takes the unread events of the display: many would stop the answers.
func (d *display) drain() {
	defer close(d.over)
	for {
		if event, err := d.conn.WaitForEvent(); event == nil && err == nil {
			return
		}
	}
}

// close ends the connection and waits for it.
func (d *display) close() {
	d.conn.Close()
	<-d.over
	d.stop()
}

// input prepares the display for events of a pointer and a keyboard.
func (d *display) input() error {
	if err := xtest.Init(d.conn); err != nil {
		return fmt.Errorf("the display takes no input from programs: %w", err)
	}
	return nil
}

// greeting is a connection that puts the display's cookie into the first bytes, the library's
// greeting. The library finds a cookie only for a display that it dials itself, and then an X
// server that hangs would hold it forever.
type greeting struct {
	net.Conn
	cookie []byte
	sent   bool
}

const authProtocol = "MIT-MAGIC-COOKIE-1"

func (g *greeting) Write(p []byte) (int, error) {
	if g.sent {
		return g.Conn.Write(p)
	}
	g.sent = true
	hello := []byte{'l', 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if len(g.cookie) > 0 {
		binary.LittleEndian.PutUint16(hello[6:], uint16(len(authProtocol)))
		binary.LittleEndian.PutUint16(hello[8:], uint16(len(g.cookie)))
		hello = append(append(append(hello, authProtocol...), 0, 0), g.cookie...)
	}
	if _, err := g.Conn.Write(hello); err != nil {
		return 0, err
	}
	return len(p), nil
}

// maxAuthority bounds the bytes of a file of cookies.
const maxAuthority = 1 << 20

// cookieOf returns the cookie of a display, of XAUTHORITY or ~/.Xauthority; none if there
// is none, since a display may take this user without one.
func cookieOf(number string) []byte {
	file := os.Getenv("XAUTHORITY")
	if file == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil
		}
		file = filepath.Join(home, ".Xauthority")
	}
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	host, err := os.Hostname()
	if err != nil {
		return nil
	}
	in := io.LimitReader(f, maxAuthority)
	for {
		family, fields, err := entryOf(in)
		if err != nil {
			return nil
		}
		const local, wild = 256, 65535
		there := family == wild || family == local && string(fields[0]) == host
		if shown := string(fields[1]); there && (shown == "" || shown == number) && string(fields[2]) == authProtocol && len(fields[3]) == 16 {
			return fields[3]
		}
	}
}

// entryOf reads an entry of a file of cookies: address, number, protocol and cookie.
func entryOf(in io.Reader) (family uint16, fields [4][]byte, err error) {
	if err := binary.Read(in, binary.BigEndian, &family); err != nil {
		return 0, fields, err
	}
	for i := range fields {
		var size uint16
		if err := binary.Read(in, binary.BigEndian, &size); err != nil {
			return 0, fields, err
		}
		fields[i] = make([]byte, size)
		if _, err := io.ReadFull(in, fields[i]); err != nil {
			return 0, fields, err
		}
	}
	return family, fields, nil
}

var errGone = errors.New("the display has ended, or does not answer")

// explain makes the error of a lost connection readable.
func explain(err error) error {
	if errors.Is(err, io.EOF) {
		return errGone
	}
	return err
}
