package ssh

import (
	"time"

	farline "github.com/turngate/turngate/internal/line"
)

// LoginWithin sets the limit of a login.
func (b *Backend) LoginWithin(d time.Duration) { b.login = d }

// SetTiming sets the times of lines.
func (b *Backend) SetTiming(t farline.Timing) { b.timing = t }
