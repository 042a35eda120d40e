package gate

import "testing"

// TestASumOfCostsIsKnownOrNot: one answer without a known cost makes the sum of its tag
// unknown.
func TestASumOfCostsIsKnownOrNot(t *testing.T) {
	c, one := costs{}, 1.0
	for i := range 3 {
		if got := c.add("agent", &one); got == nil || *got != float64(i+1) {
			t.Errorf("after %d answers: %v", i+1, got)
		}
	}
	for _, cost := range []*float64{nil, &one} {
		if got := c.add("aux", cost); got != nil {
			t.Errorf("got %v", *got)
		}
	}
	if one != 1 || *c["agent"] != 3 {
		t.Errorf("an addend was changed: %v, %v", one, *c["agent"])
	}
}
