package queue

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// TestAttemptsThatRanAreForgotten checks that a worker keeps an attempt without a
// job only while the rollout may still name it.
func TestAttemptsThatRanAreForgotten(t *testing.T) {
	t.Parallel()
	running := newJobs("w1", "i1")
	begin := func(id schema.ID) { running.began(&Job{Request: schema.Request{ID: id}, Attempt: 2}) }
	for name, tt := range map[string]struct {
		state schema.State
		keeps bool
	}{
		"its own state":                      {schema.State{Status: schema.StatusRunning, Worker: "w1", Instance: "i1", Attempt: 2}, true},
		"cancelling":                         {schema.State{Status: schema.StatusCancelling, Worker: "w1", Instance: "i1", Attempt: 2}, true},
		"an earlier attempt":                 {schema.State{Status: schema.StatusRunning, Worker: "w9", Instance: "i1", Attempt: 1}, true},
		"put back":                           {schema.State{Status: schema.StatusQueued, Attempt: 2}, false},
		"ended":                              {schema.State{Status: schema.StatusDone, Worker: "w1", Instance: "i1", Attempt: 2}, false},
		"another worker's":                   {schema.State{Status: schema.StatusRunning, Worker: "w2", Instance: "i1", Attempt: 3}, false},
		"a later attempt of this worker":     {schema.State{Status: schema.StatusRunning, Worker: "w1", Instance: "i1", Attempt: 3}, false},
		"the same attempt of a new instance": {schema.State{Status: schema.StatusRunning, Worker: "w1", Instance: "i2", Attempt: 2}, false},
	} {
		begin("alpha-1")
		tt.state.ID = "alpha-1"
		running.past(&tt.state)
		if running.hasRun("alpha-1", 2) != tt.keeps {
			t.Errorf("%s: kept %v", name, !tt.keeps)
		}
	}
	running.of["alpha-kept"] = &Job{}
	begin("alpha-kept")
	for i := range 5 * maxRan {
		begin(schema.ID("alpha-" + strconv.Itoa(i)))
	}
	if len(running.ran) > 2*maxRan || !running.hasRun("alpha-kept", 2) {
		t.Errorf("%d attempts are kept, that of the running job: %v", len(running.ran), running.hasRun("alpha-kept", 2))
	}
}

// TestAnUnknownOutcomeStartsTheWatchAgain checks that a lease which was absent
// before a write with an unknown outcome is watched again.
func TestAnUnknownOutcomeStartsTheWatchAgain(t *testing.T) {
	t.Parallel()
	watched := func() *resolution {
		m := &resolution{known: true}
		m.watched, m.lease = true, leaseAbsent
		m.watch.look(time.Now(), time.Second)
		return m
	}
	m := watched()
	m.unsure(errors.New("no answer"))
	if m.watched || m.watch != (absenceTimer{}) || m.lease != leaseUnknown || m.known || !m.moved {
		t.Errorf("got %+v", m)
	}
	m = watched()
	m.unsure(broker.ErrMoved)
	if !m.watched || m.lease != leaseUnknown || m.known || !m.moved {
		t.Errorf("after a refused write: got %+v", m)
	}
}
