package desktop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
)

// Desktop is a display of this host that its owner offers. It is safe for concurrent use:
// one operation runs at a time.
type Desktop struct {
	// Answered is called after each order with its operation, as the client wrote it, and the
	// code of its error, or none. Nil: nothing is called. It is set before Serve.
	Answered func(operation, code string)

	display  string
	input    bool
	busy     chan struct{} // has a token while an operation runs
	keyboard keyboard
}

// New offers a display, such as :0. input is the owner's consent to the use of its pointer
// and its keyboard.
func New(display string, input bool) *Desktop {
	return &Desktop{display: display, input: input, busy: make(chan struct{}, 1)}
}

// Check returns an error if the display cannot be used.
func (d *Desktop) Check(ctx context.Context) (err error) {
	defer caught(&err)
	screen, err := open(ctx, d.display)
	if err != nil {
		return err
	}
	defer screen.close()
	if _, _, _, err := screen.channels(); err != nil {
		return err
	}
	if d.input {
		return screen.input()
	}
	return nil
}

// ErrConsent means that the owner of a machine has not allowed input.
var ErrConsent = errors.New("the machine's owner has not allowed input: it needs turngate machine serve --desktop-input")

// Serve reads an order, carries it out and answers it. The connection ends then, or with the
// context.
func (d *Desktop) Serve(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	text, err := bufio.NewReader(io.LimitReader(conn, maxOrder)).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read an order: want a line of at most %d bytes: %w", maxOrder, err)
	}
	a, picture := d.answer(ctx, text)
	line, err := json.Marshal(a)
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err == nil && len(picture) > 0 {
		_, err = conn.Write(picture)
	}
	if err != nil {
		return fmt.Errorf("answer an order: %w", err)
	}
	return nil
}

func (d *Desktop) answer(ctx context.Context, text []byte) (a Answer, picture []byte) {
	var o Order
	if d.Answered != nil {
		defer func() { d.Answered(o.Op, a.Code) }()
	}
	err := json.Unmarshal(text, &o)
	if err != nil {
		err = &InvalidError{"order", string(text), "an order in JSON"}
	} else {
		a, picture, err = d.do(ctx, &o)
	}
	var invalid *InvalidError
	switch {
	case err == nil:
		return a, picture
	case errors.As(err, &invalid):
		a.Code = CodeInvalid
	case errors.Is(err, ErrConsent):
		a.Code = CodeConsent
	default:
		a.Code = CodeDisplay
	}
	a.Error = err.Error()
	return a, nil
}

func (d *Desktop) do(ctx context.Context, o *Order) (a Answer, picture []byte, err error) {
	defer caught(&err)
	if err := o.Check(); err != nil {
		return a, nil, err
	}
	if o.Op != Screenshot && !d.input {
		return a, nil, ErrConsent
	}
	select {
	case d.busy <- struct{}{}:
		defer func() { <-d.busy }()
	case <-ctx.Done():
		return a, nil, context.Cause(ctx)
	}
	screen, err := open(ctx, d.display)
	if err != nil {
		return a, nil, err
	}
	defer screen.close()
	a.Width, a.Height = screen.width, screen.height
	if o.Op == Screenshot {
		picture, err = screen.screenshot(o.MaxSide)
		a.Bytes = len(picture)
		return a, picture, err
	}
	return a, nil, screen.do(&d.keyboard, o)
}
