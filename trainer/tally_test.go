package trainer

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/turngate/turngate/schema"
)

// TestEnough uses the vectors of groups with enough results, which Python uses
// too.
func TestEnough(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/groups.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		About      string
		Enough     int
		Treatments Treatments
		Results    []struct {
			schema.Result
			Enough bool
		}
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatal(err, "no vectors")
	}
	for _, v := range all {
		count := newTally(v.Enough, v.Treatments)
		for i := range v.Results {
			if got := count.add(&v.Results[i].Result); got != v.Results[i].Enough {
				t.Errorf("%s: result %d: got %v", v.About, i, got)
			}
		}
	}
}
