// Package ssh makes local sandboxes on other hosts, which it reaches with the
// system's ssh. The program on the other side is turngate itself: far.Serve.
package ssh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/box"
	farline "github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes on the hosts of SSH.
type Backend struct {
	helper  string
	config  string                            // file of settings for ssh; empty: the user's
	program func() (digest string, err error) // of the helper
	trees   far.Trees
	hosts   []*host
	login   time.Duration // limit of a login
	timing  farline.Timing
}

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "ssh", Asked: func(h sandboxes.Host) bool { return len(h.SSH.Hosts) > 0 }, Works: "namespaces work on each host", Remedy: "do as the line above says, or leave the host out of --ssh",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			b := &Backend{helper: h.Helper, config: h.SSH.Config, program: sync.OnceValues(func() (string, error) { return far.Digest(h.Helper) }), login: 30 * time.Second, timing: farline.DefaultTiming()}
			for i, name := range h.SSH.Hosts {
				if err := CheckHost(name); err != nil {
					return nil, err
				}
				if slices.Contains(h.SSH.Hosts[:i], name) {
					return nil, fmt.Errorf("the host %q is listed twice", name)
				}
				b.hosts = append(b.hosts, &host{Host: far.NewHost("ssh", "the host "+name), name: name, dials: make(chan struct{}, maxDials)})
			}
			return b, nil
		},
	}
}

// CheckHost returns an error if ssh would not take the name as a destination.
func CheckHost(name string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.@:/%+\[\]-]*$`).MatchString(name) {
		return fmt.Errorf("%q is not valid: want a host, user@host or ssh://user@host:port", name)
	}
	return nil
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return Kind().Name }

// errNoHosts is the error of a Backend without hosts.
var errNoHosts = fmt.Errorf("%w: name the hosts with --ssh HOST,HOST", sandboxes.ErrNotAsked)

// Check makes a sandbox on each host and closes it.
func (b *Backend) Check(ctx context.Context) error {
	if len(b.hosts) == 0 {
		return errNoHosts
	}
	problems := make([]error, len(b.hosts))
	var all sync.WaitGroup
	for i, h := range b.hosts {
		all.Go(func() {
			sb, err := b.createOn(ctx, h, sandboxes.Spec{Owner: "check", Rollout: schema.ID(fmt.Sprintf("check-%d-%d", os.Getpid(), i)), Attempt: 1})
			if err == nil {
				err = sb.Close(ctx)
			}
			problems[i] = err
		})
	}
	all.Wait()
	return errors.Join(problems...)
}

// Create implements sandboxes.Backend. It takes the host with the fewest sandboxes
// of this backend, and another one if that host fails. Hosts that failed a short
// time ago come last.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	if err := local.Refuse(s, b.Name()); err != nil {
		return nil, err
	}
	if len(b.hosts) == 0 {
		return nil, errNoHosts
	}
	var problems []error
	refused := 0
	for _, h := range b.order(time.Now()) {
		sb, err := b.createOn(ctx, h, s)
		if err == nil {
			return sb, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		var no *sandboxes.UnsupportedError
		if errors.As(err, &no) {
			refused++
		}
		if no == nil || no.Field == "sandbox.backend" {
			h.failed.Store(time.Now().UnixNano())
		}
		problems = append(problems, err)
	}
	err := errors.Join(problems...)
	if refused < len(problems) {
		return nil, errors.New(err.Error()) // no *UnsupportedError: a host that failed may be able to make it
	}
	return nil, err
}

// failedTime is the time for which a host that failed comes last.
const failedTime = time.Minute

// order returns the hosts in the order in which Create takes them.
func (b *Backend) order(now time.Time) []*host {
	type place struct {
		host   *host
		failed int
		load   int64
	}
	var places []place
	for _, h := range b.hosts {
		p := place{host: h, load: h.sandboxes.Load()}
		if now.Sub(time.Unix(0, h.failed.Load())) < failedTime {
			p.failed = 1
		}
		places = append(places, p)
	}
	slices.SortStableFunc(places, func(x, y place) int { return cmp.Or(cmp.Compare(x.failed, y.failed), cmp.Compare(x.load, y.load)) })
	var hosts []*host
	for _, p := range places {
		hosts = append(hosts, p.host)
	}
	return hosts
}

func (b *Backend) createOn(ctx context.Context, h *host, s sandboxes.Spec) (_ sandboxes.Sandbox, err error) {
	h.sandboxes.Add(1)
	l, err := b.dial(ctx, h, s.Log)
	if err != nil {
		h.sandboxes.Add(-1)
		return nil, err
	}
	lasting, err := l.Last(ctx, b.timing, l, func(ctx context.Context, name string) (far.Carrier, error) { return b.attach(ctx, h, name) })
	if err != nil {
		l.End(ctx)
		h.sandboxes.Add(-1)
		return nil, err
	}
	sb := &sandbox{host: h, line: lasting}
	defer func() {
		if err != nil {
			_ = sb.Close(context.WithoutCancel(ctx))
		}
	}()
	client, err := lasting.Sandbox(ctx, &b.trees, s.Owner, s, lasting.Lost)
	if err != nil {
		return nil, err
	}
	sb.Client = client
	return sb, nil
}

// Sweep implements sandboxes.Backend.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	var problems []error
	n := 0
	for _, h := range b.hosts {
		swept, err := b.sweepOn(ctx, h, owner, keep)
		n += swept
		problems = append(problems, err)
	}
	return n, errors.Join(problems...)
}

func (b *Backend) sweepOn(ctx context.Context, h *host, owner string, keep func(schema.ID) bool) (int, error) {
	l, err := b.dial(ctx, h, nil)
	if err != nil {
		return 0, err
	}
	defer l.End(ctx)
	return l.Sweep(ctx, owner, keep)
}

type sandbox struct {
	*box.Client
	sandboxes.Alone
	host  *host
	line  *far.Lasting
	close sync.Once
}

// Close implements sandboxes.Sandbox. The other side removes the sandbox when the line
// ends.
func (sb *sandbox) Close(ctx context.Context) error {
	sb.close.Do(func() {
		if sb.Client != nil {
			sb.Disconnect()
		}
		sb.line.End(ctx)
		sb.host.sandboxes.Add(-1)
	})
	return nil
}

// endTime bounds the wait for the other side after its input has ended.
const endTime = 20 * time.Second
