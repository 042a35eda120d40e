package gopool_test

import (
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/gopool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryFunctionRunsAndCloseWaits(t *testing.T) {
	var p gopool.Pool
	var n atomic.Int32
	release := make(chan struct{})
	for range 100 { // all at once: Go never waits
		p.Go(func() { <-release; n.Add(1) })
	}
	close(release)
	for range 100 {
		p.Go(func() { n.Add(1) })
	}
	p.Close()
	p.Close()
	if n.Load() != 200 {
		t.Fatalf("%d ran, want 200", n.Load())
	}
}
