// Package machine makes local sandboxes on machines that dial out to NATS: a machine
// needs no inbound port. The program on the other side is turngate itself: far.Serve,
// which `turngate machine serve` starts.
package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes on machines.
type Backend struct {
	fleet   sandboxes.Fleet
	want    string                            // capability of the machines
	names   []string                          // of the machines to use; none: all
	program func() (digest string, err error) // of this turngate
	trees   far.Trees
	heard   time.Time // by then each live machine has announced itself

	mu    sync.Mutex
	hosts map[string]*host
}

// host is a machine that was used.
type host struct {
	*far.Host
	sandboxes int       // of this backend
	failed    time.Time // the last time
}

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "machine", Asked: func(h sandboxes.Host) bool { return h.Machines.Fleet != nil }, Works: "the machines that are there make sandboxes", Remedy: "do as the line above says, or name other machines with --machines",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			b, err := newBackend(h, schema.CanSandbox)
			if err != nil {
				return nil, err
			}
			return b, nil
		},
	}
}

func newBackend(h sandboxes.Host, want string) (*Backend, error) {
	for _, name := range h.Machines.Names {
		if err := schema.CheckToken("machine", name); err != nil {
			return nil, err
		}
	}
	return &Backend{fleet: h.Machines.Fleet, want: want, names: h.Machines.Names, program: sync.OnceValues(func() (string, error) { return far.Digest(h.Helper) }), heard: time.Now().Add(checkTime), hosts: map[string]*host{}}, nil
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return Kind().Name }

var errNoFleet = fmt.Errorf("%w: a worker with NATS takes --sandboxes machine", sandboxes.ErrNotAsked)

// waitTime is the time for which Create waits for a machine with a free slot, checkTime
// that for announcements: a machine has one every 2 s. visitTime
// bounds the work of Check and Sweep on the machines.
const (
	waitTime  = time.Minute
	checkTime = 5 * time.Second
	visitTime = time.Minute
)

// Check makes a sandbox on each live machine, and closes it. No machine at all is no error,
// since machines come and go. Without names of machines Check fails only if none of them works:
// one bad machine must not stop the workers.
func (b *Backend) Check(ctx context.Context) error {
	var mu sync.Mutex
	var problems []error
	works := false
	err := b.each(ctx, func(ctx context.Context, m *schema.Machine) {
		s := sandboxes.Spec{Owner: "check", Rollout: schema.ID(fmt.Sprintf("check-%d-%s", os.Getpid(), m.Machine[:min(len(m.Machine), 20)])), Attempt: 1}
		err := b.unfit(m)
		if err == nil && m.Lines < m.Slots {
			var sb *Sandbox
			if sb, err = b.createOn(ctx, m, s); err == nil {
				err = sb.Close(ctx)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		works = works || err == nil
		problems = append(problems, err)
	})
	if err != nil || works && len(b.names) == 0 {
		return err
	}
	return errors.Join(problems...)
}

// each calls do for each live machine, at once. The context of do ends after visitTime.
func (b *Backend) each(ctx context.Context, do func(context.Context, *schema.Machine)) error {
	if b.fleet == nil {
		return errNoFleet
	}
	var there []schema.Machine
	limited, cancel := context.WithDeadline(ctx, b.heard)
	defer cancel()
	err := b.fleet.Await(limited, func(all []schema.Machine) bool {
		there = b.wanted(all)
		return len(b.names) > 0 && len(there) == len(b.names)
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	visit, leave := context.WithTimeoutCause(ctx, visitTime, fmt.Errorf("a machine gives no answer within %s", visitTime))
	defer leave()
	var all sync.WaitGroup
	for i := range there {
		all.Go(func() { do(visit, &there[i]) })
	}
	all.Wait()
	return nil
}

// wanted selects the machines that this backend may use.
func (b *Backend) wanted(all []schema.Machine) []schema.Machine {
	return slices.DeleteFunc(slices.Clone(all), func(m schema.Machine) bool {
		return len(b.names) > 0 && !slices.Contains(b.names, m.Machine)
	})
}

// unfit returns an *UnsupportedError if a machine makes no sandboxes for this turngate.
func (b *Backend) unfit(m *schema.Machine) error {
	no := func(reason string) error {
		return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: b.Name(), Reason: "on the machine " + m.Machine + ": " + plain.Line(reason, far.MaxSays)}
	}
	if reason, lacks := m.Missing[b.want]; lacks {
		return no(reason)
	}
	digest, err := b.program()
	if err != nil {
		return err
	}
	if m.Program != digest {
		return no(fmt.Sprintf("it has another turngate (version %s for %s); install the same there as here", cmp.Or(m.Version, "unknown"), cmp.Or(m.System, "an unknown system")))
	}
	return nil
}

// Create implements sandboxes.Backend. It takes the machine with the fewest sandboxes
// for its slots, and another one if that machine fails. A machine that failed a short
// time ago comes last. Without a machine that is free it waits for one.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	if err := local.Refuse(s, b.Name()); err != nil {
		return nil, err
	}
	if b.fleet == nil {
		return nil, errNoFleet
	}
	tried, problems, refused := map[string]bool{}, []error(nil), 0
	for {
		m, err := b.choose(ctx, tried, s.Log)
		if m == nil && err == nil {
			break
		}
		if err == nil {
			tried[m.Instance] = true
			var sb *Sandbox
			if sb, err = b.createOn(ctx, m, s); err == nil {
				return sb, nil
			}
		}
		if ctx.Err() != nil {
			return nil, err
		}
		var no *sandboxes.UnsupportedError
		if errors.As(err, &no) {
			refused++
		}
		if problems = append(problems, err); m == nil {
			break
		}
	}
	err := errors.Join(problems...)
	if refused < len(problems) {
		return nil, errors.New(err.Error()) // no *UnsupportedError: a machine that failed may be able to make it
	}
	return nil, err
}

// choose waits for a machine that fits, is free and was not tried. It returns nil if all that
// fit were tried. If no live machine fits, the error has their reasons. log gets a line if it
// waits for longer than checkTime; nil drops it.
func (b *Backend) choose(ctx context.Context, tried map[string]bool, log func(string)) (*schema.Machine, error) {
	var chosen *schema.Machine
	var busy []string
	var unfit []error
	look := func(all []schema.Machine) bool {
		busy, unfit = nil, nil
		var free []schema.Machine
		for _, m := range b.wanted(all) {
			switch err := b.unfit(&m); {
			case tried[m.Instance]:
			case err != nil:
				unfit = append(unfit, err)
			case m.Draining || m.Lines >= m.Slots:
				busy = append(busy, m.Machine)
			default:
				free = append(free, m)
			}
		}
		if b.sort(free); len(free) > 0 {
			chosen = &free[0]
		}
		return chosen != nil || len(busy) == 0 && len(tried) > 0
	}
	missing := func(d time.Duration) error {
		switch {
		case len(busy) > 0:
			return fmt.Errorf("no machine was free within %s: %s have all slots taken, or drain", d, strings.Join(busy, ", "))
		case len(b.names) > 0:
			return fmt.Errorf("the machine %s was offline for %s; start it: turngate machine serve", strings.Join(b.names, ", "), d)
		default:
			return fmt.Errorf("no machine was there for %s; start one: turngate machine serve", d)
		}
	}
	for _, limit := range []time.Duration{checkTime, waitTime - checkTime} {
		limited, cancel := context.WithTimeout(ctx, limit)
		err := b.fleet.Await(limited, look)
		cancel()
		switch {
		case err == nil:
			return chosen, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case len(busy) == 0 && len(unfit) > 0: // others would have announced themselves by now
			return nil, errors.Join(unfit...)
		case limit == checkTime && log != nil:
			log(missing(checkTime).Error())
		}
	}
	return nil, missing(waitTime)
}

// failedTime is the time for which a machine that failed comes last.
const failedTime = time.Minute

// sort orders machines as Create takes them.
func (b *Backend) sort(list []schema.Machine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	rank := func(m *schema.Machine) (failed int, load float64) {
		used := m.Lines
		if h := b.hosts[m.Machine]; h != nil {
			used = max(used, h.sandboxes)
			if now.Sub(h.failed) < failedTime {
				failed = 1
			}
		}
		return failed, float64(used) / float64(max(m.Slots, 1))
	}
	slices.SortStableFunc(list, func(x, y schema.Machine) int {
		fx, lx := rank(&x)
		fy, ly := rank(&y)
		return cmp.Or(cmp.Compare(fx, fy), cmp.Compare(lx, ly))
	})
}

// count adds to the sandboxes on a machine and returns the machine.
func (b *Backend) count(machine string, n int, failed bool) *host {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.hosts[machine]
	if h == nil {
		h = &host{Host: far.NewHost(b.Name(), "the machine "+machine)}
		b.hosts[machine] = h
	}
	h.sandboxes += n
	if failed {
		h.failed = time.Now()
	}
	return h
}

func (b *Backend) createOn(ctx context.Context, m *schema.Machine, s sandboxes.Spec) (_ *Sandbox, err error) {
	h := b.count(m.Machine, 1, false)
	l, err := b.dial(ctx, m, h)
	if err != nil {
		b.count(m.Machine, -1, ctx.Err() == nil)
		return nil, err
	}
	sb := &Sandbox{backend: b, machine: m.Machine, line: l}
	if sb.Client, err = l.Sandbox(ctx, &b.trees, s.Owner, s, l.lost); err != nil { //nolint:contextcheck // lost is asked later
		var no *sandboxes.UnsupportedError
		b.count(m.Machine, 0, ctx.Err() == nil && (!errors.As(err, &no) || no.Field == "sandbox.backend"))
		_ = sb.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return sb, nil
}

// Sweep implements sandboxes.Backend. It reaches the live machines.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (n int, err error) {
	var mu sync.Mutex
	var problems []error
	err = b.each(ctx, func(ctx context.Context, m *schema.Machine) {
		if b.unfit(m) != nil || m.Draining { // it has no sandbox of this turngate, or they end
			return
		}
		l, err := b.dial(ctx, m, b.count(m.Machine, 0, false))
		swept := 0
		if err == nil {
			swept, err = l.Sweep(ctx, owner, keep)
			l.end(ctx)
		}
		mu.Lock()
		defer mu.Unlock()
		n += swept
		problems = append(problems, err)
	})
	if err != nil {
		return 0, err
	}
	return n, errors.Join(problems...)
}

// Sandbox is a sandbox on a machine.
type Sandbox struct {
	*box.Client
	sandboxes.Alone
	backend *Backend
	machine string
	line    *line
	close   sync.Once
}

// Close implements sandboxes.Sandbox. The machine removes the sandbox when its line
// ends.
func (sb *Sandbox) Close(ctx context.Context) error {
	sb.close.Do(func() {
		if sb.Client != nil {
			sb.Disconnect()
		}
		sb.line.end(ctx)
		sb.backend.count(sb.machine, -1, false)
	})
	return nil
}
