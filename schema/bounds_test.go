package schema

import (
	"math"
	"testing"
)

// TestAFigureThatIsNoNumberIsNotKnown, such as the load of a host.
func TestAFigureThatIsNoNumberIsNotKnown(t *testing.T) {
	for told, want := range map[float64]float64{0: 0, 0.5: 0.5, -1: 0, math.Inf(1): 0, math.Inf(-1): 0} {
		if got := Known(told); got != want {
			t.Errorf("%v is %v, want %v", told, got, want)
		}
	}
	if got := Known(math.NaN()); got != 0 {
		t.Errorf("got %v", got)
	}
}

func TestNotANumberIsInNoRange(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 11} {
		if checkRange("x", v, 0, 10) == nil {
			t.Errorf("%v is in 0 to 10", v)
		}
	}
	for _, v := range []float64{0, 5, 10} {
		if err := checkRange("x", v, 0, 10); err != nil {
			t.Error(err)
		}
	}
}
