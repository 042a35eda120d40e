package jobs_test

import (
	"testing"

	"github.com/turngate/turngate/jobs"
)

func TestAdvantages(t *testing.T) {
	one, zero, tenth := 1.0, 0.0, 0.1
	mean, deviation, a := jobs.Advantages([]*float64{&one, nil, &zero, &zero, &one})
	if *mean != 0.5 || *deviation != 0.5 || a[1] != nil || *a[0] != 1 || *a[2] != -1 {
		t.Errorf("mean %v, deviation %v, %v", *mean, *deviation, a)
	}
	mean, deviation, a = jobs.Advantages([]*float64{&tenth, &tenth, &tenth}) // their sum is not 0.3
	if *mean != 0.1 || *deviation != 0 || *a[2] != 0 {
		t.Errorf("mean %v, deviation %v, %v", *mean, *deviation, *a[2])
	}
	mean, deviation, a = jobs.Advantages([]*float64{nil})
	if mean != nil || deviation != nil || len(a) != 1 || a[0] != nil {
		t.Errorf("mean %v, deviation %v, %v", mean, deviation, a)
	}
}
