package queue

import (
	"testing"

	"github.com/turngate/turngate/schema"
)

// TestAHoldThatIsReadIsOlderThanOneThatArrives checks that a hold that arrives
// while the worker reads an earlier one is kept.
func TestAHoldThatIsReadIsOlderThanOneThatArrives(t *testing.T) {
	t.Parallel()
	h := newHolds(&base{})
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
