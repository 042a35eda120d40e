package machines_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/schema"
)

// TestAMachineThatTellsALoadWithoutANumber is listed with the others: its load is not known.
func TestAMachineThatTellsALoadWithoutANumber(t *testing.T) {
	for _, load := range []float64{math.NaN(), math.Inf(1), -1} {
		w := newWorld(t, line.DefaultTiming())
		instance, _ := w.serve(t, 1, func(m *machines.Machine) {
			m.Measure = func(p *schema.Machine) { p.Load, p.CPUs = load, 8 }
		})
		w.await(t, instance, func(m schema.Machine) bool {
			text, err := json.Marshal(m)
			harness.Must(t, err)
			if m.Load != 0 || m.CPUs != 8 {
				t.Errorf("%v: got %s", load, text)
			}
			return true
		})
	}
}
