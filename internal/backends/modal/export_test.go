package modal

import (
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/sandboxes"
)

// SetTiming sets the times of a backend's lines.
func SetTiming(b sandboxes.Backend, t line.Timing) { b.(*backend).Timing = t }

// HangUp closes the connections of a backend.
func HangUp(b sandboxes.Backend) {
	if a := b.(*backend).account; a.image != "" {
		a.maker.Close()
		a.client.Close()
	}
}
