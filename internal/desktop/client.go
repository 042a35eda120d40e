package desktop

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"io"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/machine"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Client uses the desktop of a machine.
type Client struct {
	Fleet   sandboxes.Fleet
	Machine string
}

// FailedError is a failure of the machine's desktop.
type FailedError struct{ Machine, Code, Text string }

func (e *FailedError) Error() string { return "the machine " + e.Machine + ": " + e.Text }

// Is reports whether the failure is ErrConsent.
func (e *FailedError) Is(target error) bool { return target == ErrConsent && e.Code == CodeConsent }

const (
	// doTime bounds an order: its operation, and a minute without a connection.
	doTime = 2 * time.Minute
	// maxAnswer bounds the text of an answer.
	maxAnswer = 64 << 10
)

// Do carries out an order, once or not at all, and returns its answer, and the PNG of a
// screenshot. After an error that is no *FailedError the machine may have carried it out.
func (c *Client) Do(ctx context.Context, o Order) (a Answer, picture []byte, err error) {
	if err := o.Check(); err != nil {
		return a, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, doTime, fmt.Errorf("the machine %s: no answer within %s", c.Machine, doTime))
	defer cancel()
	m, err := machine.Here(ctx, c.Fleet, c.Machine, schema.CanDesktop)
	if err != nil {
		return a, nil, err
	}
	conn, theirs, err := line.Pair()
	if err != nil {
		return a, nil, err
	}
	over := make(chan schema.LineEnd, 1)
	if err := c.Fleet.Open(ctx, m.Machine, m.Instance, schema.CanDesktop, theirs, func(end schema.LineEnd) { over <- end }); err != nil {
		_ = conn.Close()
		return a, nil, err
	}
	line, err := json.Marshal(o)
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err == nil {
		_ = conn.CloseWrite() // the machine needs no end
		a, picture, err = read(conn)
	}
	_ = conn.Close() // all is read
	if end := <-over; err != nil {
		if ctx.Err() != nil {
			return a, nil, context.Cause(ctx)
		}
		return a, nil, fmt.Errorf("the machine %s: %s", c.Machine, plain.Line(cmp.Or(end.Text, end.Reason, err.Error()), far.MaxSays))
	}
	if a.Code != "" {
		return a, nil, &FailedError{c.Machine, a.Code, plain.Line(a.Error, far.MaxSays)}
	}
	if o.Op != Screenshot {
		return a, nil, nil
	}
	if err := checkPicture(a, picture, o.MaxSide); err != nil {
		return a, nil, fmt.Errorf("the machine %s: %w", c.Machine, err)
	}
	return a, picture, nil
}

// checkPicture returns an error if a picture is none of the display of an answer.
func checkPicture(a Answer, picture []byte, maxSide int) error {
	if a.Width < 1 || a.Width > maxPoint || a.Height < 1 || a.Height > maxPoint {
		return fmt.Errorf("read the answer: a display of %d x %d pixels", a.Width, a.Height)
	}
	got, err := png.DecodeConfig(bytes.NewReader(picture))
	if err != nil {
		return fmt.Errorf("read the screenshot: %w", err)
	}
	if w, h := scaled(a.Width, a.Height, maxSide); got.Width != w || got.Height != h {
		return fmt.Errorf("read the screenshot: it has %d x %d pixels, want %d x %d", got.Width, got.Height, w, h)
	}
	return nil
}

// read reads an answer of a machine, which may be hostile.
func read(conn io.Reader) (a Answer, picture []byte, err error) {
	in := bufio.NewReaderSize(conn, maxAnswer)
	text, err := in.ReadSlice('\n')
	if err != nil {
		return a, nil, fmt.Errorf("read the answer: %w", err)
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, nil, fmt.Errorf("read the answer: %w", rawjson.Plain(err))
	}
	if a.Bytes < 0 || a.Bytes > maxPNG {
		return a, nil, errors.New("read the answer: the screenshot is too large")
	}
	if a.Bytes > 0 {
		picture = make([]byte, a.Bytes)
		if _, err := io.ReadFull(in, picture); err != nil {
			return a, nil, fmt.Errorf("read the screenshot: %w", err)
		}
	}
	return a, picture, nil
}
