package kubernetes

import farline "github.com/turngate/turngate/internal/line"

// SetTiming sets the times of lines.
func (b *Backend) SetTiming(t farline.Timing) { b.timing = t }
