// Package desktop shows the X11 desktop of a machine and uses its pointer and keyboard, for
// people far away. A line to the machine carries one order and its answer; docs/machine.md
// describes both.
package desktop

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Operations of an Order.
const (
	Screenshot = "screenshot"
	Move       = "move"
	Click      = "click"
	Drag       = "drag"
	Type       = "type"
	Key        = "key"
	Scroll     = "scroll"
)

// Order is one operation. Points are points of a screenshot with the same MaxSide.
type Order struct {
	Op        string   `json:"op"`
	MaxSide   int      `json:"max_side,omitempty"` // most pixels of the longer side of a screenshot; 0: that of the display
	X         int      `json:"x,omitempty"`
	Y         int      `json:"y,omitempty"`
	ToX       int      `json:"to_x,omitempty"` // of drag
	ToY       int      `json:"to_y,omitempty"`
	Button    string   `json:"button,omitempty"`    // of click and drag; default left
	Count     int      `json:"count,omitempty"`     // of click; default 1
	Text      string   `json:"text,omitempty"`      // of type
	Keys      []string `json:"keys,omitempty"`      // of key: chords such as ctrl+c, one after another
	Direction string   `json:"direction,omitempty"` // of scroll
	Steps     int      `json:"steps,omitempty"`     // of scroll; default 3
}

// Bounds of an order.
const (
	MinSide  = 16
	MaxSide  = 16384
	MaxText  = 4096 // characters
	MaxKeys  = 32
	MaxCount = 3
	MaxSteps = 50
	maxOrder = 64 << 10 // bytes
	maxPoint = 32767
)

// Buttons are the names of the buttons of a pointer.
func Buttons() []string { return []string{"left", "middle", "right"} }

// Directions are the names of the directions of scrolling.
func Directions() []string { return []string{"up", "down", "left", "right"} }

// InvalidError is an order with a wrong field.
type InvalidError struct{ Field, Value, Want string }

func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %.80q is not valid: want %s", e.Field, e.Value, e.Want)
}

// Check returns an *InvalidError if a field is wrong, and fills in defaults.
func (o *Order) Check() error {
	for _, n := range []struct {
		name        string
		value       *int
		least, most int
	}{
		{"max_side", &o.MaxSide, MinSide, MaxSide},
		{"x", &o.X, 0, maxPoint}, {"y", &o.Y, 0, maxPoint}, {"to_x", &o.ToX, 0, maxPoint}, {"to_y", &o.ToY, 0, maxPoint},
		{"count", &o.Count, 1, MaxCount},
		{"steps", &o.Steps, 1, MaxSteps},
	} {
		if *n.value != 0 && (*n.value < n.least || *n.value > n.most) {
			return &InvalidError{n.name, fmt.Sprint(*n.value), fmt.Sprintf("%d to %d", n.least, n.most)}
		}
	}
	switch o.Op {
	case Screenshot, Move:
	case Click, Drag:
		if o.Button == "" {
			o.Button = Buttons()[0]
		}
		o.Count = max(o.Count, 1)
		return oneOf("button", o.Button, Buttons())
	case Type:
		if n := utf8.RuneCountInString(o.Text); n < 1 || n > MaxText {
			return &InvalidError{"text", fmt.Sprintf("%d characters", n), fmt.Sprintf("1 to %d characters", MaxText)}
		}
		_, err := symbolsOf(o.Text)
		return err
	case Key:
		if len(o.Keys) < 1 || len(o.Keys) > MaxKeys {
			return &InvalidError{"keys", fmt.Sprintf("%d keys", len(o.Keys)), fmt.Sprintf("1 to %d", MaxKeys)}
		}
		for _, keys := range o.Keys {
			if _, err := chordOf(keys); err != nil {
				return err
			}
		}
	case Scroll:
		if o.Steps == 0 {
			o.Steps = 3
		}
		return oneOf("direction", o.Direction, Directions())
	default:
		return oneOf("op", o.Op, []string{Screenshot, Move, Click, Drag, Type, Key, Scroll})
	}
	return nil
}

func oneOf(field, value string, want []string) error {
	if slices.Contains(want, value) {
		return nil
	}
	return &InvalidError{field, value, strings.Join(want, ", ")}
}

// Answer is the answer to an order. The PNG of a screenshot follows it.
type Answer struct {
	Width  int    `json:"width,omitempty"` // of the display, in pixels
	Height int    `json:"height,omitempty"`
	Bytes  int    `json:"bytes,omitempty"` // of the PNG
	Code   string `json:"code,omitempty"`  // of a failure
	Error  string `json:"error,omitempty"` // its text, for people
}

// Codes of a failure.
const (
	CodeConsent = "consent" // the owner has not allowed input
	CodeInvalid = "invalid" // the order has a wrong field
	CodeDisplay = "display" // the display is gone, refuses, or lacks a feature that the order needs
)
