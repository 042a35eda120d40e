package enroll

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

const (
	// askEvery is the least time between two messages of a host.
	askEvery = 2 * time.Second
	// slower is added to this time when a host asks too often, up to slowest.
	slower  = 5 * time.Second
	slowest = time.Minute
	// deskGroup lets one desk answer each message.
	deskGroup = "desk"
	// fullFor is the time for which the desk refuses new requests after it had no room for
	// one, without a look at the requests again.
	fullFor = 5 * time.Second
)

// Desk answers hosts that ask to become machines. It decides nothing: an operator does, by
// the files of Requests and the keyring.
type Desk struct {
	Keys *broker.Keyring
	Log  zerolog.Logger
	Now  func() time.Time // default time.Now
	// Ready is called by Run when the desk answers; nil: nothing is.
	Ready func()

	requests *Requests
	mu       sync.Mutex
	pace     map[string]pace // of hosts with a request, by key
	full     time.Time       // until then there is no room for a new request
}

// pace is how often a host asks.
type pace struct {
	next  time.Time // it may ask again
	every time.Duration
}

// Run answers hosts at a server until the context ends. The server reads the same keyring.
func (d *Desk) Run(ctx context.Context, url string) error {
	if err := d.open(); err != nil {
		return err
	}
	key, err := nats.NkeyOptionFromSeed(d.Keys.DeskCreds())
	if err != nil {
		return fmt.Errorf("read the credential of the desk: %w", err)
	}
	nc, err := nats.Connect(url, key, nats.Name("turngate enroll desk"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.ReconnectWait(250*time.Millisecond))
	if err != nil {
		return fmt.Errorf("as the desk of hosts that enroll: %w", broker.ConnectError(url, err))
	}
	defer nc.Close()
	sub, err := nc.QueueSubscribe(subjects.Enroll, deskGroup, func(m *nats.Msg) {
		a := d.Answer(m.Data)
		if data, err := schema.Encode(&a); err == nil && m.Reply != "" {
			_ = nc.Publish(m.Reply, data) // the host asks again
		}
	})
	if err == nil {
		err = sub.SetPendingLimits(256, 1<<20) // a host asks again if its message is dropped
	}
	if err == nil {
		err = broker.Confirm(nc)
	}
	if err != nil {
		return fmt.Errorf("answer hosts that enroll: %w", err)
	}
	if d.Ready != nil {
		d.Ready()
	}
	<-ctx.Done()
	return nil
}

func (d *Desk) open() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.requests == nil {
		d.pace = map[string]pace{}
		d.requests, err = OpenRequests(d.Keys)
	}
	return err
}

// Answer answers the message of a host.
func (d *Desk) Answer(data []byte) schema.Enrolled {
	a := schema.Enrolled{V: schema.Version, State: schema.EnrollInvalid}
	var e schema.Enroll
	if err := schema.Decode(data, &e); err != nil {
		a.Text = reason(err)
		return a
	}
	full, err := d.refuses(&e)
	switch {
	case full:
		a.State = schema.EnrollFull
		return a
	case err == nil && !proven(&e):
		a.Text = "proof: want the signature of the host's key"
		return a
	case err == nil:
		err = d.answer(&a, &e)
	}
	if err != nil {
		d.Log.Error().Err(err).Msg("a host that wants to become a machine was not answered")
		a.State, a.Text = schema.EnrollInvalid, "the server cannot keep the request; its log has the reason"
	}
	return a
}

// refuses reports whether a message is a new request for which there is no room. It spares
// the desk the proof of the key, and the list of requests, during a flood.
func (d *Desk) refuses(e *schema.Enroll) (bool, error) {
	if err := d.open(); err != nil {
		return false, err
	}
	d.mu.Lock()
	full := d.Now().Before(d.full)
	d.mu.Unlock()
	if !full || e.Check {
		return false, nil
	}
	if key, err := d.Keys.MachineKey(e.Machine); err == nil && key == e.Key {
		return false, nil
	}
	_, err := d.requests.Get(Code(e.Key))
	return errors.Is(err, ErrUnknown), nil
}

// reason names a wrong field without its value, since other hosts hear it.
func reason(err error) string {
	var wrong *schema.InvalidError
	if errors.As(err, &wrong) {
		return wrong.Field + ": " + wrong.Want
	}
	return "the message cannot be read: is the host's turngate of the server's version?"
}

// proven reports whether the sender has the key.
func proven(e *schema.Enroll) bool {
	if !nkeys.IsValidPublicUserKey(e.Key) {
		return false
	}
	pair, err := nkeys.FromPublicKey(e.Key)
	return err == nil && pair.Verify(e.Signed(), e.Proof) == nil
}

func (d *Desk) answer(a *schema.Enrolled, e *schema.Enroll) error {
	key, err := d.Keys.MachineKey(e.Machine)
	switch {
	case err != nil && !errors.Is(err, broker.ErrNotFound):
		return err
	case err == nil && key == e.Key:
		a.State = schema.EnrollAuthorized
		return nil
	case e.Check:
		a.State = schema.EnrollRevoked
		return nil
	}
	now := d.Now()
	q, err := d.requests.Get(Code(e.Key))
	if errors.Is(err, ErrUnknown) || err == nil && q.over(now) && d.requests.Remove(q.Code) == nil {
		if q, err = d.requests.add(e, now); err == nil {
			d.Log.Info().Str("code", q.Code).Str("machine", q.Machine).Str("host", q.Host).Msg("a host asks to become a machine")
		}
	}
	switch {
	case errors.Is(err, ErrFull):
		a.State = schema.EnrollFull
		d.mu.Lock()
		d.full = now.Add(fullFor)
		d.mu.Unlock()
		return nil
	case errors.Is(err, ErrTaken), err == nil && (q.Key != e.Key || q.Machine != e.Machine):
		a.State = schema.EnrollTaken
		return nil
	case err != nil:
		return err
	}
	a.State = schema.EnrollPending
	switch err := q.Pending(now); {
	case errors.Is(err, ErrDenied):
		a.State = schema.EnrollDenied
		return nil
	case errors.Is(err, ErrExpired):
		a.State = schema.EnrollExpired
		return nil
	}
	every, early := d.asks(e.Key, now)
	if early {
		a.State = schema.EnrollSlowDown
	}
	a.IntervalMS, a.LeftMS = every.Milliseconds(), q.Expires.Sub(now).Milliseconds()
	return nil
}

// asks notes that a host asks. It returns the least time until its next message, and
// whether this one came too early.
func (d *Desk) asks(key string, now time.Time) (every time.Duration, early bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, p := range d.pace {
		if now.Sub(p.next) > Life {
			delete(d.pace, k)
		}
	}
	p, known := d.pace[key]
	if !known {
		p.every = askEvery
	}
	if early = known && now.Before(p.next); early {
		p.every = min(p.every+slower, slowest)
	}
	p.next = now.Add(p.every - p.every/4) // clocks and networks differ a little
	d.pace[key] = p
	return p.every, early
}
