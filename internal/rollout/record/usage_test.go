package record

import (
	"testing"
	"time"

	"github.com/turngate/turngate/schema"
)

// TestAPriceThatIsNotKnown: that of one sandbox makes the sum unknown, in any order.
func TestAPriceThatIsNotKnown(t *testing.T) {
	hour, free, two := time.Hour, 0.0, 2.0
	for name, c := range map[string]struct {
		prices []*float64
		want   *float64
	}{
		"none":                {[]*float64{nil}, nil},
		"one without a price": {[]*float64{nil, &two}, nil},
		"the last one":        {[]*float64{&two, nil}, nil},
		"all":                 {[]*float64{&two, &free}, &two},
		"nothing to pay":      {[]*float64{&free}, &free},
	} {
		r := New(&schema.Request{}, 1, "w1", Exits{})
		if r.Result().Usage != nil {
			t.Errorf("%s: usage before a sandbox", name)
		}
		var before schema.Result
		for _, price := range c.prices {
			before = r.Result()
			r.Sandbox(hour, price)
		}
		u := r.Result().Usage
		if u.SandboxSeconds != 3600*float64(len(c.prices)) || (u.SandboxUSD == nil) != (c.want == nil) || c.want != nil && *u.SandboxUSD != *c.want {
			t.Errorf("%s: got %+v", name, u)
		}
		if before.Usage == u {
			t.Errorf("%s: an earlier result changed", name)
		}
	}
}
