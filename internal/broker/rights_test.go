package broker_test

import (
	"testing"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

// The server says which subjects a credential may publish on.
func TestRightsOfCredentials(t *testing.T) {
	t.Parallel()
	n := testenv.StartNATS(t, "alpha", "beta")
	cancelAlpha, cancelAny, deleteDead, readDead := subjects.TrainerCancel("alpha"), subjects.CancelFilter, "$JS.API.STREAM.MSG.DELETE."+subjects.StreamDead, "$JS.API.STREAM.MSG.GET."+subjects.StreamDead
	for name, tt := range map[string]struct {
		b    *broker.Broker
		want map[string]bool
	}{
		"admin":   {n.Admin(t), map[string]bool{cancelAlpha: true, cancelAny: true, deleteDead: true, readDead: true, ">": true}},
		"ops":     {n.Ops(t), map[string]bool{cancelAlpha: false, cancelAny: false, deleteDead: false, readDead: true, ">": false}},
		"trainer": {n.Trainer(t, "alpha"), map[string]bool{cancelAlpha: true, cancelAny: false, subjects.TrainerCancel("beta"): false, subjects.Request(2, "alpha"): true, subjects.Request(2, "beta"): false, readDead: false}},
	} {
		r, err := tt.b.Rights(t.Context())
		harness.Must(t, err)
		for subject, want := range tt.want {
			if got := r.May(subject); got != want {
				t.Errorf("%s on %s: got %v", name, subject, got)
			}
		}
	}
	if (broker.Rights{}).May("x") {
		t.Error("unknown rights allow something")
	}
}
