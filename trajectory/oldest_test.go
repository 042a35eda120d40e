package trajectory_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/turngate/turngate/trajectory"
)

// TestOldest uses the vectors of the oldest version of a row, which Python uses
// too.
func TestOldest(t *testing.T) {
	data, err := os.ReadFile("testdata/oldest.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		trajectory.Row
		About string
		Want  *int64 `json:"oldest"`
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatal(err, "no vectors")
	}
	for _, v := range all {
		want := int64(-1)
		if v.Want != nil {
			want = *v.Want
		}
		if got := v.Oldest(); got != want {
			t.Errorf("%s: got %d, want %d", v.About, got, want)
		}
		if v.Older(want) || v.Older(want+1) != (want >= 0) {
			t.Errorf("%s: older than %d: %v; than %d: %v", v.About, want, v.Older(want), want+1, v.Older(want+1))
		}
	}
}
