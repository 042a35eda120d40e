package layout

import (
	"slices"

	dockerspec "github.com/moby/docker-image-spec/specs-go/v1"

	"github.com/turngate/turngate/schema"
)

// Probe returns the health check of an image; nil if there is none.
func Probe(c *dockerspec.DockerOCIImageConfig) *schema.Probe {
	if c == nil || c.Healthcheck == nil || len(c.Healthcheck.Test) < 2 {
		return nil
	}
	h := c.Healthcheck
	p := &schema.Probe{
		IntervalMS: h.Interval.Milliseconds(), TimeoutMS: h.Timeout.Milliseconds(), StartMS: h.StartPeriod.Milliseconds(), StartIntervalMS: h.StartInterval.Milliseconds(), Retries: h.Retries,
	}
	switch h.Test[0] {
	case "CMD":
		p.Test = h.Test[1:]
	case "CMD-SHELL":
		p.Test = []string{"/bin/sh", "-c", h.Test[1]}
		if len(c.Shell) > 0 {
			p.Test = append(slices.Clone(c.Shell), h.Test[1])
		}
	default: // NONE
		return nil
	}
	return p.WithDefaults()
}
