// Package e2b makes sandboxes at E2B, or at a server with its API. A sandbox of turngate
// is a local sandbox in one of E2B's: the program there is turngate itself, far.Serve,
// and its input and output travel through envd, E2B's daemon in each sandbox.
package e2b

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/far"
	"github.com/turngate/turngate/sandboxes/local"
	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes of one account of E2B.
type Backend struct {
	settings sandboxes.E2B
	helper   string
	program  func() (digest string, err error) // of the helper
	trees    far.Trees
	client   *http.Client
	control  *control
	pace     *pace
	places   chan struct{} // has a place for each sandbox that may be there at once; nil: no bound
}

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "e2b", Asked: func(h sandboxes.Host) bool { return h.E2B.Template != "" }, Works: "E2B makes sandboxes of the template, and namespaces work in them", Remedy: "do as the line above says, or leave out --e2b",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			if err := CheckSettings(h.E2B); err != nil {
				return nil, err
			}
			b := &Backend{
				settings: withDefaults(h.E2B), helper: h.Helper, program: sync.OnceValues(func() (string, error) { return far.Digest(h.Helper) }),
				client: clientOf(http.DefaultTransport.(*http.Transport).Clone()),
			}
			b.pace = newPace(b.settings.PerMinute)
			b.control = &control{url: b.settings.APIURL, key: b.settings.Key, client: b.client}
			if n := b.settings.Sandboxes; n > 0 {
				b.places = make(chan struct{}, n)
			}
			return b, nil
		},
	}
}

// clientOf returns a client that follows no redirect: the key of the account and the token
// of a sandbox would go to another host, or a request to one that only this host reaches.
func clientOf(by http.RoundTripper) *http.Client {
	return &http.Client{Transport: by, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// CheckSettings returns an error that names the first setting that is not valid.
func CheckSettings(s sandboxes.E2B) error {
	if s.Template != "" && !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./:-]{0,199}$`).MatchString(s.Template) {
		return fmt.Errorf("the template %q is not valid: want its name or id, such as base", schema.Clip(s.Template, 100))
	}
	if s.Domain != "" && !regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]+)?$`).MatchString(s.Domain) {
		return fmt.Errorf("E2B_DOMAIN: %q is not valid: want a domain such as e2b.app", schema.Clip(s.Domain, 100))
	}
	for name, text := range map[string]string{"E2B_API_URL": s.APIURL, "E2B_SANDBOX_URL": s.SandboxURL} {
		if text == "" {
			continue
		}
		if u, err := url.Parse(text); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("%s: the value is not valid: want a URL such as https://api.e2b.app", name)
		}
	}
	if s.Sandboxes < 0 || s.PerMinute < 0 {
		return errors.New("the number of sandboxes is negative: want 0 or more")
	}
	return nil
}

func withDefaults(s sandboxes.E2B) sandboxes.E2B {
	if s.Domain == "" {
		s.Domain = "e2b.app"
	}
	if s.APIURL == "" {
		s.APIURL = "https://api." + s.Domain
	}
	return s
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return Kind().Name }

var (
	errNoTemplate = fmt.Errorf("%w: name a template of E2B with --e2b TEMPLATE", sandboxes.ErrNotAsked)
	errNoKey      = errors.New("the key of E2B is missing: set E2B_API_KEY, or E2B_API_KEY_FILE to the path of a file that has it")
)

// Check makes a sandbox and closes it.
func (b *Backend) Check(ctx context.Context) error {
	sb, err := b.Create(ctx, sandboxes.Spec{Owner: "check", Rollout: schema.ID(fmt.Sprintf("check-%d", os.Getpid())), Attempt: 1})
	if err != nil {
		return err
	}
	return sb.Close(ctx)
}

// Create implements sandboxes.Backend. It waits for a place and for the turn of this
// sandbox, and as long as E2B asks for it.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (_ sandboxes.Sandbox, err error) {
	if err := local.Refuse(s, b.Name()); err != nil {
		return nil, err
	}
	if err := b.usable(); err != nil {
		return nil, err
	}
	digest, err := b.program()
	if err != nil {
		return nil, err
	}
	if s.Log == nil {
		s.Log = func(string) {}
	}
	leave, err := b.enter(ctx, s.Log)
	if err != nil {
		return nil, err
	}
	sb := &sandbox{backend: b, leave: leave}
	defer func() {
		if err != nil {
			_ = sb.Close(context.WithoutCancel(ctx))
		}
	}()
	lease := leaseOf(s.Lost)
	if sb.machine, err = b.make(ctx, &s, lease); err != nil {
		return nil, err
	}
	sb.keepAlive(context.WithoutCancel(ctx), lease)
	if sb.line, err = b.dial(ctx, sb.machine, digest, s.Log); err != nil {
		return nil, err
	}
	client, err := sb.line.Sandbox(ctx, &b.trees, far.Owner(s.Owner), s, sb.line.lost) //nolint:contextcheck // lost is asked later
	if err != nil {
		return nil, err
	}
	sb.Client = client
	return sb, nil
}

// usable returns an error if the backend has no template or no key.
func (b *Backend) usable() error {
	if b.settings.Template == "" {
		return errNoTemplate
	}
	if b.settings.Key == "" {
		return errNoKey
	}
	return nil
}

// enter takes a place for a sandbox. leave gives it back.
func (b *Backend) enter(ctx context.Context, log func(string)) (leave func(), err error) {
	if b.places == nil {
		return func() {}, context.Cause(ctx)
	}
	select {
	case b.places <- struct{}{}:
	default:
		log(fmt.Sprintf("all %d sandboxes of E2B are in use; this one waits", cap(b.places)))
		select {
		case b.places <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return func() { <-b.places }, nil
}

// Names in the metadata of E2B's sandboxes.
const (
	metaOwner   = "turngate_owner"
	metaRollout = "turngate_rollout"
	metaRun     = "turngate_run"
	metaCreate  = "turngate_create" // of one call of Create
)

// Sweep implements sandboxes.Backend.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	if err := b.usable(); err != nil {
		return 0, err
	}
	list, err := b.control.list(ctx, metaOwner, far.Owner(owner))
	if err != nil {
		return 0, err
	}
	n := 0
	var problems []error
	for _, sb := range list {
		if keep(schema.ID(sb.Metadata[metaRollout])) {
			continue
		}
		there, err := b.control.kill(ctx, sb.ID)
		problems = append(problems, err)
		if there {
			n++
		}
	}
	return n, errors.Join(problems...)
}

// sandbox is a local sandbox in a sandbox of E2B, which ends with it.
type sandbox struct {
	*box.Client
	sandboxes.Alone
	backend *Backend
	machine *machine // nil before E2B has made it
	line    *line    // nil before it is open
	leave   func()
	renewal sync.WaitGroup
	stop    context.CancelFunc // ends the renewal; nil before it begins
	close   sync.Once
	failed  error // of Close
}

// Bounds of the time for which E2B keeps a sandbox without a sign of its worker.
const (
	leastLease   = time.Minute
	defaultLease = 5 * time.Minute
	mostLease    = time.Hour
)

func leaseOf(lost time.Duration) time.Duration {
	if lost == 0 {
		return defaultLease
	}
	return min(max(lost, leastLease), mostLease)
}

// renewals is the number of times that a lease is renewed within it.
const renewals = 4

// keepAlive renews the lease of E2B's sandbox until Close. If E2B has no such sandbox any
// more, it ends the line.
func (sb *sandbox) keepAlive(ctx context.Context, lease time.Duration) {
	ctx, sb.stop = context.WithCancel(ctx)
	sb.renewal.Go(func() {
		tick := time.NewTicker(lease / renewals)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := sb.backend.control.renew(ctx, sb.machine.id, lease); isGone(err) {
				sb.machine.end(fmt.Errorf("E2B has ended it: %w", err))
				return
			}
		}
	})
}

// closeTime bounds the removal of a sandbox.
const closeTime = 30 * time.Second

// Close implements sandboxes.Sandbox. If E2B does not remove its sandbox in time, that
// ends with its lease.
func (sb *sandbox) Close(ctx context.Context) error {
	sb.close.Do(func() {
		defer sb.leave()
		if sb.Client != nil {
			sb.Disconnect()
		}
		if sb.machine == nil {
			return
		}
		sb.stop()
		sb.renewal.Wait()
		limited, cancel := context.WithTimeoutCause(ctx, closeTime, fmt.Errorf("E2B has not removed the sandbox %s within %s; it ends by itself", sb.machine.id, closeTime))
		defer cancel()
		_, sb.failed = sb.backend.control.kill(limited, sb.machine.id)
		sb.machine.end(errors.New("it was closed"))
		if sb.line != nil {
			sb.line.end()
		}
	})
	return sb.failed
}
