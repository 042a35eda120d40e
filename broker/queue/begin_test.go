package queue

import (
	"testing"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// TestAJobIsSuspendedWhileItsWorkerIs changes the worker's state around the
// begin of a job.
func TestAJobIsSuspendedWhileItsWorkerIs(t *testing.T) {
	w := &Worker{suspended: newSwitch(), jobs: map[schema.ID]*Job{}, ran: map[schema.ID]int{}, news: make(chan struct{}, 1)}
	w.suspended.set(true)
	j := w.newJob(&schema.Request{ID: "alpha-1"}, &delivery{})
	if on, _ := j.Suspended(); !on {
		t.Error("a job that is being claimed is not suspended")
	}
	j.begin(broker.Record[schema.State]{})
	on, changed := j.Suspended()
	if !on {
		t.Error("a job that begins is not suspended")
	}
	w.suspended.set(false)
	<-changed
	if on, _ := j.Suspended(); on {
		t.Error("the job stays suspended")
	}
	j.forget()
}
