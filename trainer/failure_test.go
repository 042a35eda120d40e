package trainer_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestFailures uses the vectors of failures, which Python uses too.
func TestFailures(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/failures.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		schema.Result
		About     string
		Failure   trainer.Failure
		Treatment trainer.Treatment
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatal(err, "no vectors")
	}
	kinds := map[trainer.Failure]bool{}
	for _, v := range all {
		if kind, how := trainer.FailureOf(&v.Result), trainer.DefaultTreatments().Of(&v.Result); kind != v.Failure || how != v.Treatment {
			t.Errorf("%s: got %s, %s; want %s, %s", v.About, kind, how, v.Failure, v.Treatment)
		}
		kinds[v.Failure] = true
	}
	for kind := range trainer.DefaultTreatments() {
		if !kinds[kind] {
			t.Errorf("no vector fails with %s", kind)
		}
	}
	keep := trainer.Treatments{trainer.FailureAgentTimeout: trainer.Train}
	late := schema.Result{Status: schema.StatusDone, Fault: &schema.Fault{Stage: "agent", Code: schema.CodeTimeout, Who: schema.WhoAgent}}
	if how := keep.Of(&late); how != trainer.Train {
		t.Errorf("got %s", how)
	}
	if how := keep.Of(&schema.Result{Status: schema.StatusDone}); how != trainer.Mask {
		t.Errorf("got %s", how)
	}
}
