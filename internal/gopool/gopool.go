// Package gopool runs short functions on goroutines that are kept for a
// moment: a goroutine whose stack has grown once need not grow it again for
// the next call.
package gopool

import (
	"sync"
	"time"
)

// Pool runs functions. Its zero value is ready. It has no bound: like a go
// statement, Go never waits.
type Pool struct {
	once sync.Once
	jobs chan func()
	all  sync.WaitGroup

	mu     sync.Mutex
	closed chan struct{}
}

// idle is how long a goroutine waits for more to do.
const idle = time.Second

func (p *Pool) init() {
	p.once.Do(func() { p.jobs, p.closed = make(chan func()), make(chan struct{}) })
}

// Go runs f on a goroutine that waits for work, or on a new one.
func (p *Pool) Go(f func()) {
	p.init()
	select {
	case p.jobs <- f:
	default:
		p.all.Go(func() { p.work(f) })
	}
}

func (p *Pool) work(f func()) {
	f()
	t := time.NewTimer(idle)
	defer t.Stop()
	for {
		select {
		case f = <-p.jobs:
			f()
			t.Reset(idle)
		case <-t.C:
			return
		case <-p.closed:
			return
		}
	}
}

// Close waits for the functions that run and ends the goroutines. Go must not
// be called any more.
func (p *Pool) Close() {
	p.init()
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	p.mu.Unlock()
	p.all.Wait()
}
