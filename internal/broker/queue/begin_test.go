package queue

import (
	"testing"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// TestAJobIsSuspendedWhileItsWorkerIs changes the worker's state around the
// begin of a job.
func TestAJobIsSuspendedWhileItsWorkerIs(t *testing.T) {
	t.Parallel()
	w := newWorker(&base{})
	w.leases.suspended.set(true)
	j := w.resolver.newJob(&schema.Request{ID: "alpha-1"}, &delivery{})
	if on, _ := j.Suspended(); !on {
		t.Error("a job that is being claimed is not suspended")
	}
	j.begin(broker.Record[schema.State]{})
	on, changed := j.Suspended()
	if !on {
		t.Error("a job that begins is not suspended")
	}
	w.leases.suspended.set(false)
	<-changed
	if on, _ := j.Suspended(); on {
		t.Error("the job stays suspended")
	}
	j.forget()
}
