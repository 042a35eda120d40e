package telemetry

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Described lists the names of turngate's metrics as the registry has them, sorted.
func (m *Metrics) Described() []string {
	all := make(chan *prometheus.Desc)
	go func() {
		defer close(all)
		m.registry.Describe(all)
	}()
	var out []string
	for d := range all {
		if _, rest, ok := strings.Cut(d.String(), `fqName: "turngate_`); ok {
			name, _, _ := strings.Cut(rest, `"`)
			out = append(out, "turngate_"+name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
