package schema

import (
	"math"
	"testing"
)

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
