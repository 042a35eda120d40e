package desktop

import (
	"fmt"
	"image"
	"slices"

	"github.com/jezek/xgb/xproto"
	"github.com/jezek/xgb/xtest"
)

// event is an event of the pointer or the keyboard.
type event struct {
	kind   byte
	detail byte // a button or a key
	at     image.Point
}

// fake sends events, and waits until the display has them all. It sends them back to back,
// and none of them late in an operation: a key that is down repeats itself, and a key or button
// that is down when the connection ends stays down.
func (d *display) fake(events ...event) error {
	if err := d.ready(); err != nil {
		return err
	}
	sent := make([]xtest.FakeInputCookie, len(events))
	for i, e := range events {
		sent[i] = xtest.FakeInputChecked(d.conn, e.kind, e.detail, 0, d.root, int16(e.at.X), int16(e.at.Y), 0)
	}
	var failed error
	for _, s := range sent {
		if err := s.Check(); err != nil && failed == nil {
			failed = fmt.Errorf("send input to the display: %w", explain(err))
		}
	}
	return failed
}

func (d *display) move(p image.Point) error { return d.fake(event{xproto.MotionNotify, 0, p}) }

// press presses a button and releases it; the other events come in between.
func (d *display) press(button byte, between ...event) error {
	return d.fake(slices.Concat([]event{{kind: xproto.ButtonPress, detail: button}}, between, []event{{kind: xproto.ButtonRelease, detail: button}})...)
}

func (d *display) clicks(button byte, count int) error {
	for range count {
		if err := d.press(button); err != nil {
			return err
		}
	}
	return nil
}

// dragSteps is the number of moves of a drag: programs begin one after a short way.
const dragSteps = 8

func (d *display) drag(button byte, from, to image.Point) error {
	way, moves := to.Sub(from), []event(nil)
	for n := 1; n <= dragSteps; n++ {
		moves = append(moves, event{xproto.MotionNotify, 0, from.Add(way.Mul(n).Div(dragSteps))})
	}
	return d.press(button, moves...)
}

// buttonOf returns the number of a button of the pointer. The wheel has buttons, too.
func buttonOf(name string) byte { return byte(slices.Index(Buttons(), name) + 1) }

func wheelOf(direction string) byte { return byte(slices.Index(Directions(), direction) + 4) }

// do carries out an order that needs input.
func (d *display) do(k *keyboard, o *Order) error {
	if err := d.input(); err != nil {
		return err
	}
	switch o.Op {
	case Type:
		list, err := symbolsOf(o.Text)
		if err != nil {
			return err
		}
		return k.typeText(d, list)
	case Key:
		for _, keys := range o.Keys {
			list, err := chordOf(keys)
			if err == nil {
				err = k.chord(d, list)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	from, err := d.at(o.X, o.Y, o.MaxSide)
	if err != nil {
		return err
	}
	var to image.Point
	if o.Op == Drag {
		if to, err = d.at(o.ToX, o.ToY, o.MaxSide); err != nil {
			return err
		}
	}
	if err := d.move(from); err != nil {
		return err
	}
	switch o.Op {
	case Click:
		return d.clicks(buttonOf(o.Button), o.Count)
	case Drag:
		return d.drag(buttonOf(o.Button), from, to)
	case Scroll:
		return d.clicks(wheelOf(o.Direction), o.Steps)
	default: // Move
		return nil
	}
}
