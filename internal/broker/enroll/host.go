package enroll

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// Errors of a Host.
var (
	// ErrClosed means that the server admits no host without a credential.
	ErrClosed = errors.New("the server takes no requests of hosts: its operator starts it with --enroll")
	// ErrNoDesk means that no desk answers at a server that admits such hosts.
	ErrNoDesk = errors.New("nobody answers hosts that enroll at this server: its operator runs `turngate nats enroll` beside it")
	// ErrRevoked means that the server admits the machine's key no more.
	ErrRevoked = errors.New("the server has shut this machine out, or another key was approved for its name: run `turngate machine enroll` to ask again")
	// ErrInvalid means that the server does not understand the request.
	ErrInvalid = errors.New("the server does not understand the request")
)

// Host is a host that asks to become a machine.
type Host struct {
	URL  string
	File string // of the credential that it gets
	// Enroll has the name of the machine, and texts about the host for the operator. Key and
	// Proof are filled in.
	schema.Enroll
	// Asked is called when the server has the request. left is the time until it expires.
	Asked func(left time.Duration)
	// Log is called with a line for people about a delay.
	Log func(line string)

	pair nkeys.KeyPair
}

// asked is the file with the host's key until the server admits it. A call within Life goes
// on with it, so that a request survives the end of its process.
func (h *Host) asked() string { return h.File + ".asked" }

// Open reads or makes the key of the request, and makes its folder.
func (h *Host) Open() error {
	if err := owned.Folder(filepath.Dir(h.File)); err != nil {
		return fmt.Errorf("the folder of the credential: %w", err)
	}
	if info, err := os.Stat(h.asked()); err == nil && time.Since(info.ModTime()) > Life {
		if err := h.forget(nil); err != nil { // no attacker gets more time to find another key with its code
			return err
		}
	}
	seed, err := owned.Read(h.asked())
	if errors.Is(err, os.ErrNotExist) {
		var pair nkeys.KeyPair
		if pair, err = nkeys.CreateUser(); err == nil {
			seed, err = pair.Seed()
		}
		if err == nil {
			err = owned.Create(h.asked(), seed)
		}
	}
	if err == nil {
		err = h.take(seed)
	}
	if err != nil {
		return fmt.Errorf("the key of the request, %s: %w", h.asked(), err)
	}
	return nil
}

// take makes the key that of the request.
func (h *Host) take(seed []byte) (err error) {
	if h.pair, err = nkeys.FromSeed([]byte(strings.TrimSpace(string(seed)))); err != nil {
		return err
	}
	if h.Key, err = h.pair.PublicKey(); err != nil {
		return err
	}
	h.V = schema.Version
	h.Proof, err = h.pair.Sign(h.Signed())
	return err
}

// Code returns the code of the request.
func (h *Host) Code() string { return Code(h.Key) }

// Wait asks until an operator has decided, and the server admits the host. Then File is the
// credential of the machine. After a decision against it, or without one in time, the next
// call of Open makes another key.
func (h *Host) Wait(ctx context.Context) error {
	var until time.Time // when the request expires; zero: the server has not taken it yet
	every := askEvery
	for {
		a, err := ask(ctx, h.URL, &h.Enroll)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && until.IsZero():
			return err
		case err != nil && time.Now().After(until):
			return h.forget(fmt.Errorf("%w; the last try to reach it: %w", ErrExpired, err))
		case err != nil:
			h.Log(err.Error() + "; this host asks again")
		case a.State == schema.EnrollAuthorized:
			return h.accept(ctx)
		case a.State != schema.EnrollPending && a.State != schema.EnrollSlowDown:
			return h.decided(a)
		default:
			left := time.Duration(min(a.LeftMS, Life.Milliseconds())) * time.Millisecond
			every = min(max(time.Duration(a.IntervalMS)*time.Millisecond, askEvery), slowest)
			if until.IsZero() {
				h.Asked(left)
			}
			until = time.Now().Add(left)
		}
		if err := wire.Pause(ctx, every); err != nil {
			return err
		}
	}
}

// decided is the error of an answer that ends the request.
func (h *Host) decided(a *schema.Enrolled) error {
	switch a.State {
	case schema.EnrollDenied:
		return h.forget(ErrDenied)
	case schema.EnrollExpired:
		return h.forget(ErrExpired)
	case schema.EnrollTaken:
		return h.forget(fmt.Errorf("%w: run the command again for another one", ErrTaken))
	case schema.EnrollFull:
		return ErrFull
	default:
		return h.forget(fmt.Errorf("%w: %s %s", ErrInvalid, schema.Clip(a.State, 40), schema.Clip(a.Text, 200)))
	}
}

// forget removes the key of a request that is over.
func (h *Host) forget(why error) error {
	if err := os.Remove(h.asked()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(why, err)
	}
	return why
}

// accept makes the key the machine's credential when the server admits it. It ends with
// ErrRevoked if the key is taken back before that.
func (h *Host) accept(ctx context.Context) error {
	check, err := NewCheck(h.URL, h.Machine, h.asked())
	if err != nil {
		return err
	}
	for waits := false; ; waits = true {
		nc, err := nats.Connect(h.URL, nats.Nkey(h.Key, h.pair.Sign), nats.Name("turngate enroll "+h.Machine), nats.NoReconnect())
		if err == nil {
			nc.Close()
			break
		}
		if err := check.Ask(ctx); errors.Is(err, ErrRevoked) {
			return h.forget(err)
		}
		if !waits {
			h.Log("the request is approved; the server does not admit the machine yet: " + err.Error())
		}
		if err := wire.Pause(ctx, askEvery); err != nil {
			return err
		}
	}
	if err := os.Rename(h.asked(), h.File); err != nil {
		return fmt.Errorf("keep the machine's credential: %w", err)
	}
	return nil
}

// ask sends a message to the desk of a server.
func ask(ctx context.Context, url string, e *schema.Enroll) (*schema.Enrolled, error) {
	ctx, cancel := context.WithTimeout(ctx, wire.OpTimeout)
	defer cancel()
	data, err := schema.Encode(e)
	if err != nil {
		return nil, err
	}
	pair, err := broker.EnrollKey()
	if err != nil {
		return nil, err
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	nc, err := nats.Connect(url, nats.Nkey(public, pair.Sign), nats.Name("turngate enroll"), nats.CustomInboxPrefix(broker.EnrollInbox), nats.NoReconnect(), nats.Timeout(wire.OpTimeout))
	if errors.Is(err, nats.ErrAuthorization) {
		return nil, ErrClosed
	}
	if err != nil {
		return nil, broker.ConnectError(url, err)
	}
	defer nc.Close()
	m, err := nc.RequestWithContext(ctx, subjects.Enroll, data)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, ErrNoDesk
	}
	if err != nil {
		return nil, fmt.Errorf("ask to become a machine: %w", err)
	}
	var a schema.Enrolled
	if err := schema.Decode(m.Data, &a); err != nil {
		return nil, fmt.Errorf("ask to become a machine: the server's answer: %w", err)
	}
	return &a, nil
}

// Check asks a server whether it still has the key of a machine.
type Check struct {
	url string
	e   schema.Enroll
}

// NewCheck reads the key in a machine's credential. A later change of the file does not
// change the key.
func NewCheck(url, machine, creds string) (*Check, error) {
	h := Host{Enroll: schema.Enroll{Machine: machine, Check: true}}
	seed, err := owned.Read(creds)
	if err == nil {
		err = h.take(seed)
	}
	if err != nil {
		return nil, fmt.Errorf("the machine's credential, %s: %w", creds, err)
	}
	return &Check{url, h.Enroll}, nil
}

// Ask returns ErrRevoked if the server has not the key. Any other error leaves the question
// open.
func (c *Check) Ask(ctx context.Context) error {
	a, err := ask(ctx, c.url, &c.e)
	if err == nil && a.State == schema.EnrollRevoked {
		return ErrRevoked
	}
	return err
}
