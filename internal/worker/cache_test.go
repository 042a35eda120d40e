package worker_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// slowKeeper is a backend. Its prune fails once and then runs until its context ends.
type slowKeeper struct {
	*dummy.Backend
	ended chan struct{}
}

func (k *slowKeeper) KeepCache(ctx context.Context, failed func(error)) {
	failed(errors.New("no space"))
	<-ctx.Done()
	close(k.ended)
}

// TestRolloutsRunWhileTheBuildCacheIsPruned: the prune ends with the worker, and
// its error has a text of its own.
func TestRolloutsRunWhileTheBuildCacheIsPruned(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	ended := make(chan struct{})
	b := newBench(t, nil, func(c *worker.Config) {
		backend := &dummy.Backend{Programs: shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)})}
		c.Backends = []sandboxes.Backend{&slowKeeper{backend, ended}}
		c.Log = zerolog.New(zerolog.SyncWriter(&log))
	})
	if res := b.result(t, request("alpha-1")); res.Status != schema.StatusDone {
		t.Fatalf("got %+v", res)
	}
	b.stop()
	select {
	case <-ended:
	default:
		t.Error("the prune outlives the worker")
	}
	if got := log.String(); !strings.Contains(got, "the build cache was not pruned") || !strings.Contains(got, "no space") || strings.Contains(got, "earlier process") {
		t.Errorf("logged %s", got)
	}
}
