package enroll_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/enroll"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

func TestCodesAreTypedByPeople(t *testing.T) {
	code := enroll.Code("UAHB2DW3WNLI5ELSTCQ4GAHBNMUJVN2TFTIAZXE7ZLXSCYZQ3BYVBCJY")
	if other := enroll.Code("UBHB2DW3WNLI5ELSTCQ4GAHBNMUJVN2TFTIAZXE7ZLXSCYZQ3BYVBCJY"); code == other {
		t.Errorf("two keys have the code %s", code)
	}
	for _, typed := range []string{code, strings.ToLower(code), strings.ReplaceAll(code, "-", ""), " " + strings.ReplaceAll(code, "0", "o")} {
		if got, err := enroll.ParseCode(typed); err != nil || got != code {
			t.Errorf("%q: %q, %v", typed, got, err)
		}
	}
	if got, err := enroll.ParseCode("O1IL-0000-000o"); err != nil || got != "0111-0000-0000" {
		t.Errorf("letters that look like digits: %q, %v", got, err)
	}
	for _, wrong := range []string{"", "K7QM-2F9D", "K7QM-2F9D-K7QM-2F9D", "../../x", "K7QM-2F9D-K7QU", "K7QM-2F9D-\nK7Q", "K7QM-2F9D-\n\nK7", "ключ-ключ", strings.Repeat("A", 1000)} {
		if got, err := enroll.ParseCode(wrong); err == nil {
			t.Errorf("%q is taken as %q", wrong, got)
		}
	}
}

// host is a host with a key of its own.
type host struct {
	pair nkeys.KeyPair
	schema.Enroll
}

func newHost(t testing.TB, machine string) *host {
	t.Helper()
	pair, err := nkeys.CreateUser()
	harness.Must(t, err)
	public, err := pair.PublicKey()
	harness.Must(t, err)
	return &host{pair, schema.Enroll{V: schema.Version, Machine: machine, Key: public, Host: "h1"}}
}

// message returns the host's message.
func (h *host) message(t testing.TB) []byte {
	t.Helper()
	var err error
	h.Proof, err = h.pair.Sign(h.Signed())
	harness.Must(t, err)
	data, err := schema.Encode(&h.Enroll)
	harness.Must(t, err)
	return data
}

// counter is a desk with a clock that tests move.
type counter struct {
	*enroll.Desk
	requests *enroll.Requests
	now      time.Time
}

func newCounter(t testing.TB) *counter {
	t.Helper()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	c := &counter{now: time.Unix(1_790_000_000, 0)}
	c.Desk = &enroll.Desk{Keys: keys, Log: zerolog.Nop(), Now: func() time.Time { return c.now }}
	c.requests, err = enroll.OpenRequests(keys)
	harness.Must(t, err)
	return c
}

func (c *counter) wants(t *testing.T, h *host, state string) schema.Enrolled {
	t.Helper()
	c.now = c.now.Add(time.Minute)
	a := c.Answer(h.message(t))
	if a.State != state {
		t.Errorf("got %+v, want %s", a, state)
	}
	return a
}

func TestStatesOfARequest(t *testing.T) {
	c := newCounter(t)

	h := newHost(t, "m1")
	first := c.wants(t, h, schema.EnrollPending)
	if first.IntervalMS <= 0 || first.LeftMS != enroll.Life.Milliseconds() {
		t.Errorf("got %+v", first)
	}
	soon := c.Answer(h.message(t))
	later := c.Answer(h.message(t))
	if soon.State != schema.EnrollSlowDown || later.State != schema.EnrollSlowDown || soon.IntervalMS <= first.IntervalMS || later.IntervalMS <= soon.IntervalMS {
		t.Errorf("a host that asks too often: %+v, then %+v", soon, later)
	}
	c.wants(t, h, schema.EnrollPending)
	q, err := c.requests.Get(enroll.Code(h.Key))
	harness.Must(t, err)
	harness.Must(t, c.requests.Admit(q, false, c.now))
	harness.Must(t, c.requests.Admit(q, false, c.now)) // a command that is run again
	c.wants(t, h, schema.EnrollAuthorized)
	harness.Must(t, c.requests.Remove(q.Code))
	c.wants(t, h, schema.EnrollAuthorized)

	denied := newHost(t, "m2")
	c.wants(t, denied, schema.EnrollPending)
	seen, err := c.requests.Get(enroll.Code(denied.Key))
	harness.Must(t, err)
	_, err = c.requests.Deny(enroll.Code(denied.Key), c.now)
	harness.Must(t, err)
	c.wants(t, denied, schema.EnrollDenied)
	if err := c.requests.Admit(seen, true, c.now); !errors.Is(err, enroll.ErrDenied) {
		t.Errorf("an operator who decides after the denial: %v", err)
	}
	if _, err := c.requests.Deny(enroll.Code(denied.Key), c.now); !errors.Is(err, enroll.ErrDenied) {
		t.Errorf("a second time: %v", err)
	}

	late := newHost(t, "m3")
	c.wants(t, late, schema.EnrollPending)
	seen, err = c.requests.Get(enroll.Code(late.Key))
	harness.Must(t, err)
	c.now = c.now.Add(enroll.Life)
	c.wants(t, late, schema.EnrollExpired)
	if err := c.requests.Admit(seen, true, c.now); !errors.Is(err, enroll.ErrExpired) {
		t.Errorf("an operator who decides too late: %v", err)
	}
	seen.Machine = "m4"
	if err := c.requests.Admit(seen, true, c.now.Add(-enroll.Life)); !errors.Is(err, enroll.ErrTaken) {
		t.Errorf("another machine than the operator saw: %v", err)
	}
	for _, name := range []string{"m2", "m3", "m4"} {
		if key, err := c.Keys.MachineKey(name); !errors.Is(err, broker.ErrNotFound) {
			t.Errorf("%s has the key %q, %v", name, key, err)
		}
	}
	if _, err := c.requests.Deny(enroll.Code(late.Key), c.now); !errors.Is(err, enroll.ErrExpired) {
		t.Errorf("an expired request: %v", err)
	}
	c.now = c.now.Add(time.Hour)
	c.wants(t, late, schema.EnrollPending) // the desk has forgotten the first request

	if _, err := c.requests.Get("0000-0000-0000"); !errors.Is(err, enroll.ErrUnknown) {
		t.Errorf("an unknown code: %v", err)
	}
}

// A machine's name goes to another key only if the operator wants that, and the earlier key is
// revoked then. A check makes no request.
func TestAnotherKeyReplacesTheFirst(t *testing.T) {
	c := newCounter(t)
	harness.Must(t, c.Keys.AddMachine("m1", "")) // with a seed in the keyring
	first, err := c.Keys.MachineKey("m1")
	harness.Must(t, err)
	for range 2 { // in place of a seed, and of a public key
		h := newHost(t, "m1")
		c.wants(t, h, schema.EnrollPending)
		q, err := c.requests.Get(enroll.Code(h.Key))
		harness.Must(t, err)
		if err := c.requests.Replaces(q); !errors.Is(err, enroll.ErrHasKey) {
			t.Errorf("got %v", err)
		}
		if key, err := c.Keys.MachineKey("m1"); err != nil || key != first {
			t.Errorf("the key changed before the approval: %s, %v", key, err)
		}
		if err := c.requests.Admit(q, false, c.now); !errors.Is(err, enroll.ErrHasKey) {
			t.Errorf("without the operator's wish to replace the key: %v", err)
		}
		harness.Must(t, c.requests.Admit(q, true, c.now))
		if key, err := c.Keys.MachineKey("m1"); err != nil || key != h.Key {
			t.Errorf("got %s, %v", key, err)
		}
		c.wants(t, h, schema.EnrollAuthorized)
		first = h.Key
	}
	old := newHost(t, "m1")
	old.Check = true
	c.wants(t, old, schema.EnrollRevoked)
	if _, err := c.requests.Get(enroll.Code(old.Key)); !errors.Is(err, enroll.ErrUnknown) {
		t.Errorf("a check left a request: %v", err)
	}
}

// A flood of requests neither fills the folder nor pushes out a request.
func TestAFloodOfRequests(t *testing.T) {
	c := newCounter(t)
	honest := newHost(t, "m1")
	c.wants(t, honest, schema.EnrollPending)
	taken := 0
	for i := range 200 {
		switch a := c.Answer(newHost(t, fmt.Sprintf("flood%d", i)).message(t)); a.State {
		case schema.EnrollPending:
			taken++
		case schema.EnrollFull:
		default:
			t.Fatalf("got %+v", a)
		}
	}
	list, err := c.requests.List()
	harness.Must(t, err)
	if taken == 0 || len(list) != taken+1 || len(list) > 64 {
		t.Errorf("%d requests are kept, %d were taken", len(list), taken)
	}
	unproven := newHost(t, "m9")
	unproven.message(t)
	unproven.Proof[0]++
	data, err := schema.Encode(&unproven.Enroll)
	harness.Must(t, err)
	if a := c.Answer(data); a.State != schema.EnrollFull {
		t.Errorf("the desk verified a proof although it has no room: %+v", a)
	}
	if a := c.Answer(honest.message(t)); a.State != schema.EnrollSlowDown && a.State != schema.EnrollPending {
		t.Errorf("a host with a request during the flood: %+v", a)
	}
	c.wants(t, honest, schema.EnrollPending)
	c.now = c.now.Add(enroll.Life)
	c.wants(t, newHost(t, "m2"), schema.EnrollPending) // there is room again
	for range 4 {
		c.now = c.now.Add(enroll.Life)
		for i := range 70 {
			c.Answer(newHost(t, fmt.Sprintf("flood%d", i)).message(t))
		}
	}
	if list, err := c.requests.List(); err != nil || len(list) > 256 {
		t.Errorf("%d requests are kept, %v", len(list), err)
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	c := newCounter(t)
	everybody, err := broker.EnrollKey()
	harness.Must(t, err)
	public, err := everybody.PublicKey()
	harness.Must(t, err)
	shared := &host{everybody, schema.Enroll{V: schema.Version, Machine: "m1", Key: public}}
	c.wants(t, shared, schema.EnrollPending)
	q, err := c.requests.Get(enroll.Code(public))
	harness.Must(t, err)
	if err := c.requests.Admit(q, false, c.now); err == nil || !strings.Contains(err.Error(), "that all hosts have") {
		t.Errorf("everybody became a machine: %v", err)
	}
	if err := c.Keys.AddMachine("m1", public); err == nil {
		t.Error("everybody became a machine")
	}

	stolen := newHost(t, "m1")
	stolen.message(t)
	stolen.Machine = "m2" // the proof is for m1
	data, err := schema.Encode(&stolen.Enroll)
	harness.Must(t, err)
	if a := c.Answer(data); a.State != schema.EnrollInvalid || !strings.Contains(a.Text, "proof") {
		t.Errorf("got %+v", a)
	}
	for field, h := range map[string]*host{"machine": newHost(t, "m1"), "host": newHost(t, "m1"), "key": newHost(t, "m1")} {
		valid := h.message(t)
		switch field {
		case "machine":
			valid = []byte(strings.Replace(string(valid), "m1", "m.", 1))
		case "host":
			valid = []byte(strings.Replace(string(valid), "h1", "h\x1b", 1))
		case "key":
			valid = []byte(strings.Replace(string(valid), h.Key[:2], "U.", 1))
		}
		if a := c.Answer(valid); a.State != schema.EnrollInvalid || !strings.Contains(a.Text, field) {
			t.Errorf("%s: got %+v", field, a)
		}
	}
	if a := c.Answer([]byte("\xff")); a.State != schema.EnrollInvalid || a.Text == "" {
		t.Errorf("got %+v", a)
	}
}

func FuzzAnswer(f *testing.F) {
	c := newCounter(f)
	f.Add(newHost(f, "m1").message(f))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if a := c.Answer(data); schema.Validate(&a) != nil {
			t.Errorf("got %+v", a)
		}
	})
}

// office is a server where hosts can enroll, with its desk.
type office struct {
	*broker.Embedded
	requests *enroll.Requests
}

func newOffice(t *testing.T) *office {
	t.Helper()
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Enroll: true, Relaxed: true, Log: zerolog.Nop()})
	o := &office{Embedded: srv}
	var err error
	o.requests, err = enroll.OpenRequests(srv.Keyring)
	harness.Must(t, err)
	return o
}

// open lets a desk answer until the test ends.
func (o *office) open(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ready, over := make(chan struct{}), make(chan error, 1)
	d := &enroll.Desk{Keys: o.Keyring, Log: zerolog.Nop(), Ready: func() { close(ready) }}
	go func() { over <- d.Run(ctx, o.URL()) }()
	t.Cleanup(func() {
		stop()
		harness.Must(t, <-over)
	})
	select {
	case <-ready:
	case err := <-over:
		over <- err
		t.Fatal(err)
	}
}

// comes is a host at the office. asked is called when its request has arrived.
func (o *office) comes(t *testing.T, machine string, asked func(q *enroll.Request)) *enroll.Host {
	t.Helper()
	h := &enroll.Host{URL: o.URL(), File: filepath.Join(t.TempDir(), "machine-"+machine+".nk"), Enroll: schema.Enroll{Machine: machine, Host: "h1"}, Log: func(line string) { t.Log(line) }}
	h.Asked = func(time.Duration) {
		q, err := o.requests.Get(h.Code())
		if err != nil {
			t.Error(err)
			return
		}
		asked(q)
	}
	harness.Must(t, h.Open())
	return h
}

func TestAHostIsAdmitted(t *testing.T) {
	o := newOffice(t)
	early := o.comes(t, "m0", nil)
	if err := early.Wait(t.Context()); !errors.Is(err, enroll.ErrNoDesk) {
		t.Errorf("without a desk: %v", err)
	}
	o.open(t)
	h := o.comes(t, "m1", func(q *enroll.Request) {
		if err := errors.Join(o.requests.Admit(q, false, time.Now()), o.Reload()); err != nil {
			t.Error(err)
		}
	})
	harness.Must(t, h.Wait(t.Context()))
	info, err := os.Stat(h.File)
	harness.Must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the credential has mode %v", info.Mode())
	}
	b, err := broker.Dial(t.Context(), broker.Config{URL: o.URL(), Creds: h.File, Inbox: broker.InboxFor(broker.RoleMachine, "m1"), Log: zerolog.Nop()})
	harness.Must(t, err)
	harness.Must(t, b.CheckInbox(t.Context()))
	b.Close()
	check, err := enroll.NewCheck(o.URL(), "m1", h.File)
	harness.Must(t, err)
	harness.Must(t, check.Ask(t.Context()))
	harness.Must(t, o.RemoveMachine("m1"))
	harness.Must(t, o.Reload())
	if err := check.Ask(t.Context()); !errors.Is(err, enroll.ErrRevoked) {
		t.Errorf("a machine that was shut out: %v", err)
	}
}

// A host ends and forgets its key if its machine is revoked before the server admits it.
func TestAHostIsRevokedBeforeItConnects(t *testing.T) {
	o := newOffice(t)
	o.open(t)
	h := o.comes(t, "m1", func(q *enroll.Request) {
		if err := o.requests.Admit(q, false, time.Now()); err != nil { // no server is reloaded
			t.Error(err)
		}
	})
	h.Log = func(string) { // the host has been refused once
		if err := o.RemoveMachine("m1"); err != nil {
			t.Error(err)
		}
	}
	if err := h.Wait(t.Context()); !errors.Is(err, enroll.ErrRevoked) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(h.File + ".asked"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its key is kept: %v", err)
	}
}

// A host that is denied makes another key for its next request; one that was interrupted goes
// on with its key.
func TestAHostIsDenied(t *testing.T) {
	o := newOffice(t)
	o.open(t)
	ctx, interrupt := context.WithCancel(t.Context())
	h := o.comes(t, "m1", func(*enroll.Request) { interrupt() })
	if err := h.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	first := h.Code()
	harness.Must(t, h.Open())
	if h.Code() != first {
		t.Errorf("the code changed from %s to %s", first, h.Code())
	}
	old := time.Now().Add(-2 * enroll.Life)
	harness.Must(t, os.Chtimes(h.File+".asked", old, old))
	harness.Must(t, h.Open())
	if h.Code() == first {
		t.Error("the key of an old request is used again")
	}
	first = h.Code()
	h.Asked = func(time.Duration) {
		if _, err := o.requests.Deny(h.Code(), time.Now()); err != nil {
			t.Error(err)
		}
	}
	if err := h.Wait(t.Context()); !errors.Is(err, enroll.ErrDenied) {
		t.Errorf("got %v", err)
	}
	if h.Code() != first {
		t.Errorf("the code changed from %s to %s", first, h.Code())
	}
	if _, err := os.Stat(h.File); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it has a credential: %v", err)
	}
	harness.Must(t, h.Open())
	if h.Code() == first {
		t.Error("the next request has the same key")
	}
}

func TestAServerWhereNobodyEnrolls(t *testing.T) {
	srv := testenv.Serve(t, broker.EmbeddedConfig{StateDir: filepath.Join(t.TempDir(), "nats"), Relaxed: true, Log: zerolog.Nop()})
	h := &enroll.Host{URL: srv.URL(), File: filepath.Join(t.TempDir(), "machine-m1.nk"), Enroll: schema.Enroll{Machine: "m1"}}
	harness.Must(t, h.Open())
	if err := h.Wait(t.Context()); !errors.Is(err, enroll.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
