package enroll

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

const (
	// Life is the time in which a request can be approved.
	Life = 10 * time.Minute
	// memory is the time for which a request that is over is kept, so that its host learns
	// what became of it.
	memory = 10 * time.Minute
	// maxRequests is the largest number of requests that can be approved.
	maxRequests = 64
)

// Request is the wish of a host to become a machine.
type Request struct {
	Code    string    `json:"code"`
	Machine string    `json:"machine"`
	Key     string    `json:"key"` // public
	Host    string    `json:"host"`
	System  string    `json:"system"`
	Version string    `json:"version"`
	Expires time.Time `json:"expires"`
	Denied  bool      `json:"denied"`
}

// Errors of requests.
var (
	ErrUnknown = errors.New("no host asks with this code")
	ErrExpired = errors.New("the request has expired: `turngate machine enroll` on the host makes a new one")
	ErrDenied  = errors.New("an operator has denied the request: `turngate machine enroll` on the host makes a new one")
	ErrFull    = errors.New("too many hosts ask: the request can be made again when some are approved, denied or expired")
	ErrTaken   = errors.New("another host asks with this code, or for another machine")
)

// Pending returns why the request cannot be approved: ErrDenied, ErrExpired, or nil.
func (r *Request) Pending(now time.Time) error {
	switch {
	case r.Denied:
		return fmt.Errorf("%s: %w", r.Code, ErrDenied)
	case !now.Before(r.Expires):
		return fmt.Errorf("%s: %w", r.Code, ErrExpired)
	}
	return nil
}

// over reports whether the host no longer asks for the request.
func (r *Request) over(now time.Time) bool { return now.After(r.Expires.Add(memory)) }

// Requests are the requests beside a server's keyring: a file for each, which all servers of
// a cluster and the operator's commands share.
type Requests struct {
	keys *broker.Keyring
	dir  string
}

// requestExt ends the names of the files of requests, after the code.
const requestExt = ".json"

// OpenRequests opens the requests beside a keyring, and makes their folder.
func OpenRequests(keys *broker.Keyring) (*Requests, error) {
	dir := filepath.Join(keys.Dir(), "enroll")
	if err := owned.Folder(dir); err != nil {
		return nil, fmt.Errorf("the folder of requests to become a machine: %w", err)
	}
	return &Requests{keys, dir}, nil
}

func (r *Requests) file(code string) string { return filepath.Join(r.dir, code+requestExt) }

// Get returns the request with a code of ParseCode. Errors wrap ErrUnknown.
func (r *Requests) Get(code string) (*Request, error) {
	data, err := owned.Read(r.file(code))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", code, ErrUnknown)
	}
	var q Request
	if err == nil {
		err = rawjson.Plain(json.Unmarshal(data, &q))
	}
	if err == nil && (q.Code != code || Code(q.Key) != code) {
		err = errors.New("the file has another code")
	}
	if err != nil {
		return nil, fmt.Errorf("read the request %s: %w", code, err)
	}
	return &q, nil
}

// List returns the requests in the order in which they expire. If some cannot be read, it
// returns an error together with the others.
func (r *Requests) List() ([]*Request, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, fmt.Errorf("list the requests to become a machine: %w", err)
	}
	list, bad := []*Request{}, []error{}
	for _, e := range entries {
		code, ok := strings.CutSuffix(e.Name(), requestExt)
		if _, err := ParseCode(code); err != nil || !ok {
			continue // not a request
		}
		q, err := r.Get(code)
		if errors.Is(err, ErrUnknown) { // it is removed now
			continue
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b *Request) int { return a.Expires.Compare(b.Expires) })
	return list, errors.Join(bad...)
}

// add keeps a new request, and removes the requests that are over. Errors are ErrFull and
// ErrTaken.
func (r *Requests) add(e *schema.Enroll, now time.Time) (*Request, error) {
	list, err := r.List()
	if list == nil {
		return nil, err
	}
	err = nil // a request that cannot be read keeps no other host out
	pending := 0
	for _, q := range list {
		if q.over(now) {
			err = errors.Join(err, r.Remove(q.Code))
		} else if q.Pending(now) == nil {
			pending++
		}
	}
	if err != nil {
		return nil, err
	}
	if pending >= maxRequests || len(list) >= 4*maxRequests { // a denial makes room for few more
		return nil, ErrFull
	}
	q := &Request{Code: Code(e.Key), Machine: e.Machine, Key: e.Key, Host: e.Host, System: e.System, Version: e.Version, Expires: now.Add(Life)}
	data, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	err = owned.Create(r.file(q.Code), append(data, '\n'))
	if errors.Is(err, os.ErrExist) {
		return nil, ErrTaken
	}
	if err != nil {
		return nil, fmt.Errorf("keep the request %s: %w", q.Code, err)
	}
	return q, nil
}

// lock keeps other decisions about requests out until unlock is called.
func (r *Requests) lock() (unlock func(), err error) {
	name := filepath.Join(r.dir, "lock")
	if err = owned.Create(name, nil); errors.Is(err, os.ErrExist) {
		err = nil
	}
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(name, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the requests to become a machine: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // the lock ends with it
}

// pending returns the request with a code, if it can be approved.
func (r *Requests) pending(code string, now time.Time) (*Request, error) {
	q, err := r.Get(code)
	if err == nil {
		err = q.Pending(now)
	}
	if err != nil {
		return nil, err
	}
	return q, nil
}

// Deny ends a request. Errors wrap ErrUnknown, ErrDenied and ErrExpired.
func (r *Requests) Deny(code string, now time.Time) (*Request, error) {
	unlock, err := r.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	q, err := r.pending(code, now)
	if err != nil {
		return nil, err
	}
	q.Denied = true
	data, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	if err := owned.Replace(r.file(code), append(data, '\n')); err != nil {
		return nil, fmt.Errorf("deny the request %s: %w", code, err)
	}
	return q, nil
}

// Remove deletes a request.
func (r *Requests) Remove(code string) error {
	if err := os.Remove(r.file(code)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the request %s: %w", code, err)
	}
	return nil
}

// ErrHasKey means that another host is this machine.
var ErrHasKey = errors.New("the machine has another key already")

// Replaces returns ErrHasKey if the machine of a request has another key than the request.
func (r *Requests) Replaces(q *Request) error {
	key, err := r.keys.MachineKey(q.Machine)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return nil
	case err == nil && key != q.Key:
		return fmt.Errorf("%s: %w", q.Machine, ErrHasKey)
	}
	return err
}

// Admit gives the machine of a request its key in the keyring; with replace, in place of
// another one. It reads the request again, since the operator took time to decide. Errors
// wrap ErrUnknown, ErrDenied, ErrExpired, ErrTaken and ErrHasKey. The servers read the keyring
// when they are reloaded.
func (r *Requests) Admit(q *Request, replace bool, now time.Time) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	current, err := r.pending(q.Code, now)
	if err != nil {
		return err
	}
	if current.Key != q.Key || current.Machine != q.Machine {
		return fmt.Errorf("%s: %w", q.Code, ErrTaken)
	}
	key, err := r.keys.MachineKey(q.Machine)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return r.keys.AddMachine(q.Machine, q.Key)
	case err != nil:
		return err
	case key == q.Key: // by an earlier call, after which no server was reloaded
		return nil
	case !replace:
		return fmt.Errorf("%s: %w", q.Machine, ErrHasKey)
	default:
		return r.keys.ReplaceMachine(q.Machine, q.Key)
	}
}
