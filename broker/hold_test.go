package broker

import (
	"testing"

	"github.com/turngate/turngate/schema"
)

// TestWhatIsReadOfAHoldIsOlderThanWhatIsHeard: a hold that comes while a worker
// looks for an earlier one stays.
func TestWhatIsReadOfAHoldIsOlderThanWhatIsHeard(t *testing.T) {
	h := newHolds()
	h.take("alpha", schema.Hold{Instance: "a", Serial: 1, All: true})
	h.learn("alpha", schema.Hold{})
	if held := h.by["alpha"]; !held.Holds("alpha-1") {
		t.Error("a hold was replaced by nothing")
	}
	h.take("alpha", schema.Hold{Instance: "a", Serial: 2})
	h.take("alpha", schema.Hold{Instance: "a", Serial: 1, All: true})
	if held := h.by["alpha"]; held.Holds("alpha-1") {
		t.Error("an older hold replaced a newer one")
	}
}
