package worker_test

import (
	"math"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/schema"
)

// TestSandboxesArePaid: the result has the time of the agent's and the verifier's sandboxes,
// and its price if the worker has one.
func TestSandboxesArePaid(t *testing.T) {
	t.Parallel()
	for name, prices := range map[string]map[string]float64{"priced": {"dummy": 7200}, "unpriced": {"docker": 1}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}), func(c *worker.Config) { c.Prices = prices })
			r := request("alpha-paid")
			r.Verify.Separate = &schema.SandboxChoice{Backend: "dummy"}
			res := b.result(t, r)
			if res.Status != schema.StatusDone || res.Usage == nil || res.Usage.SandboxSeconds <= 0 {
				t.Fatalf("%s, %+v, %+v", res.Status, res.Fault, res.Usage)
			}
			seconds, usd := res.Usage.SandboxSeconds, res.Usage.SandboxUSD
			if (usd != nil) != (name == "priced") || usd != nil && math.Abs(*usd-2*seconds) > 0.01 {
				t.Errorf("%.3f s cost %v", seconds, usd)
			}
		})
	}
}
