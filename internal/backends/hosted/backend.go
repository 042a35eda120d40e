package hosted

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Provider has the requests of a service. It is safe for concurrent use.
type Provider interface {
	// Usable returns an error that names the setting or the key that is missing. It asks
	// nothing of the service.
	Usable() error
	// Make asks once for a machine. After a *RefusedError with the status 429 it is called
	// again. If the service may have made a machine although no answer came, Make removes
	// it, see Forget. The spec's Owner is unique among hosts.
	Make(ctx context.Context, s *sandboxes.Spec) (*Rented, error)
	// List lists the machines of an owner. With an error it returns the machines that it has read.
	List(ctx context.Context, owner string) ([]Found, error)
	// Remove asks once to remove a machine. IsGone tells one that is not there from another
	// error.
	Remove(ctx context.Context, id string) error
}

// Rented is a machine that a provider has made.
type Rented struct {
	ID string
	Remote
	// Ready waits until commands can start there. nil: they can.
	Ready func(ctx context.Context, log func(string)) error
	// Renew lets the machine live for Lease from now. It is called several times within it.
	// nil: the machine has no lease.
	Renew func(ctx context.Context) error
	Lease time.Duration
	// Release frees the parts of the machine in this process, after its removal. nil: there
	// are none.
	Release func()
}

// Found is a machine of a list.
type Found struct {
	ID      string
	Rollout schema.ID
}

// Settings are the settings of a backend.
type Settings struct {
	Name      string            // value of sandbox.backend in a request
	Service   string            // in errors, such as "E2B"
	Origin    string            // of the machines, for far.Fits, such as "the image makes a"
	Helper    string            // path of the turngate binary
	Sandboxes int               // at once; 0: no bound
	PerMinute int               // sandboxes made in a minute; 0: no bound
	Warn      func(line string) // see sandboxes.Host
}

func (s *Settings) warn(line string) {
	if s.Warn != nil {
		s.Warn(line)
	}
}

// Backend makes sandboxes at a service. Each is a local sandbox in a machine of its own.
type Backend struct {
	Timing   line.Timing // of the lines to the machines
	settings Settings
	provider Provider
	program  func() (digest string, err error) // of the helper
	trees    far.Trees
	bounds   *Bounds
}

// The times of lines. A worker tells the box more often than each beat that it lives, so an idle
// line has no requests beside these. The box gives up a stream that one side has closed after a
// time longer than silence.
const (
	beat    = 15 * time.Second
	silence = 110 * time.Second
)

// NewBackend returns a backend.
func NewBackend(s Settings, p Provider) *Backend {
	return &Backend{
		Timing:   line.Timing{Beat: beat, Silence: silence},
		settings: s, provider: p, program: sync.OnceValues(func() (string, error) { return far.Digest(s.Helper) }),
		bounds: NewBounds(s.Service, s.Sandboxes, s.PerMinute),
	}
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return b.settings.Name }

// checkLife is the time after which the sandbox of a check ends by itself.
const checkLife = 10 * time.Minute

// Check makes a sandbox and closes it.
func (b *Backend) Check(ctx context.Context) error {
	sb, err := b.Create(ctx, sandboxes.Spec{Owner: "check", Rollout: schema.ID(fmt.Sprintf("check-%d", os.Getpid())), Attempt: 1, Life: checkLife})
	if err != nil {
		return err
	}
	return sb.Close(ctx)
}

// Create implements sandboxes.Backend. It waits for a place and for the turn of this
// sandbox, and as long as the service asks for it.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (_ sandboxes.Sandbox, err error) {
	if err := local.Refuse(s, b.Name()); err != nil {
		return nil, err
	}
	if err := b.provider.Usable(); err != nil {
		return nil, err
	}
	digest, err := b.program()
	if err != nil {
		return nil, err
	}
	if s.Log == nil {
		s.Log = func(string) {}
	}
	leave, err := b.bounds.Enter(ctx, s.Log)
	if err != nil {
		return nil, err
	}
	sb := &sandbox{backend: b, leave: leave}
	defer func() {
		if err != nil {
			_ = sb.Close(context.WithoutCancel(ctx))
		}
	}()
	if err = b.rent(ctx, &s, sb); err != nil {
		return nil, b.blame(ctx, err)
	}
	first, err := sb.machine.Dial(ctx, b.settings.Helper, digest, b.settings.Origin, s.Log)
	if err != nil {
		return nil, err
	}
	sb.line, err = first.Last(ctx, b.Timing, first, func(ctx context.Context, name string) (far.Carrier, error) {
		return sb.machine.attach(ctx, digest, name)
	})
	if err != nil {
		first.End(ctx)
		return nil, err
	}
	client, err := sb.line.Sandbox(ctx, &b.trees, s.Owner, s, sb.line.Lost) //nolint:contextcheck // lost is asked later
	if err != nil {
		return nil, err
	}
	sb.Client = client
	return sb, nil
}

// blame returns a *sandboxes.ServiceError if the service is the reason for which there is no
// machine. At the end of ctx it is, if it has refused the request for now until then.
func (b *Backend) blame(ctx context.Context, err error) error {
	no := (*RefusedError)(nil)
	refused := errors.As(err, &no) && slices.Contains([]int{http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusTooManyRequests}, no.Status)
	if !refused && (ctx.Err() != nil || !MayHave(err)) {
		return err
	}
	return &sandboxes.ServiceError{Backend: b.Name(), Refused: refused, Err: err}
}

// maxID bounds the id of a machine in errors.
const maxID = 100

// rent gives a sandbox its machine, when the turn of this request has come, and waits until
// commands can start there.
func (b *Backend) rent(ctx context.Context, s *sandboxes.Spec, sb *sandbox) error {
	var made *Rented
	err := b.bounds.Make(ctx, s.Log, func() (err error) {
		made, err = b.provider.Make(ctx, s)
		return err
	})
	if err != nil {
		return err
	}
	sb.rented, sb.made = made, time.Now()
	sb.machine = NewMachine(far.NewHost(b.Name(), "the "+b.settings.Service+" sandbox "+plain.Line(made.ID, maxID)), made.Remote)
	if made.Renew != nil {
		sb.keep(context.WithoutCancel(ctx))
	}
	if made.Ready != nil {
		if err := made.Ready(ctx, s.Log); err != nil {
			return fmt.Errorf("%s: %w", sb.machine.Called, err)
		}
	}
	return nil
}
