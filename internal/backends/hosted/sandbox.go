package hosted

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// sandbox is a local sandbox in a machine, which ends with it.
type sandbox struct {
	*box.Client
	sandboxes.Alone
	backend *Backend
	rented  *Rented // nil before the service has made it
	made    time.Time
	machine *Machine     // of rented
	line    *far.Lasting // nil before it is open
	leave   func()
	renewal sync.WaitGroup
	stop    context.CancelFunc // ends the renewal; nil: the machine has no lease
	close   sync.Once
	failed  error // of Close
}

// Made implements sandboxes.Paid.
func (sb *sandbox) Made() time.Time { return sb.made }

// renewals is the number of times that a lease is renewed within it.
const renewals = 4

// keep renews the lease of the machine until Close. If the service has no such machine any
// more, keep ends the line.
func (sb *sandbox) keep(ctx context.Context) {
	ctx, sb.stop = context.WithCancel(ctx)
	sb.renewal.Go(func() {
		tick := time.NewTicker(sb.rented.Lease / renewals)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := sb.rented.Renew(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case IsGone(err):
				sb.machine.End(sb.machine.lapses.explain(fmt.Errorf("%s has ended it: %w", sb.backend.settings.Service, err)))
				return
			}
			if n := sb.machine.lapses.note(err); n&(n-1) == 0 && n > 0 { // at growing intervals
				sb.backend.settings.warn(fmt.Sprintf("%s: the renewal of its lease failed, %d times in a row; it ends without one: %v", sb.machine.Called, n, err))
			}
		}
	})
}

// Close implements sandboxes.Sandbox. If the service does not remove the machine in time, that
// ends by itself.
func (sb *sandbox) Close(ctx context.Context) error {
	sb.close.Do(func() {
		defer sb.leave()
		if sb.Client != nil {
			sb.Disconnect()
		}
		if sb.rented == nil {
			return
		}
		if sb.stop != nil {
			sb.stop()
			sb.renewal.Wait()
		}
		limited, cancel := sb.backend.limit(ctx)
		defer cancel()
		if _, err := sb.backend.remove(limited, sb.rented.ID); err != nil && sb.machine.Gone(limited) == nil { // without time Gone does not know
			sb.failed = err
		}
		sb.machine.End(errors.New("it was closed"))
		if sb.line != nil {
			sb.line.End(ctx)
		}
		if sb.rented.Release != nil {
			sb.rented.Release()
		}
	})
	return sb.failed
}
