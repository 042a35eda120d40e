package reach

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// MaxKept is the largest number of sandboxes that a host keeps at once.
const MaxKept = 10

// Host serves the sandboxes of this process to commands of the same user.
type Host struct {
	dir      string
	lock     *os.File
	listener net.Listener
	serving  sync.WaitGroup
	ending   chan struct{} // closed by Close

	mu      sync.Mutex
	all     map[string]*Held
	conns   map[net.Conn]bool // true: Close closes it
	waits   bool              // this process runs for kept sandboxes alone
	changed chan struct{}     // closed and replaced when a kept sandbox is gone
}

// Held is a sandbox of a Host.
type Held struct {
	host *Host
	info Sandbox
	box  Box
	env  func() map[string]string

	ends   chan struct{} // closed when a kept sandbox must end
	ending sync.Once
	gone   chan struct{} // closed when it has ended
}

// Alone returns a host without a folder, which no command reaches. Its sandboxes are found
// with Newest. It keeps none, and needs no Close.
func Alone() *Host { return &Host{all: map[string]*Held{}} }

// Open makes a folder below root and serves it.
func Open(root string) (_ *Host, err error) {
	if err := checkRoot(root); err != nil {
		return nil, err
	}
	all, err := lock(filepath.Join(root, lockName), true) // Sweep removes no folder that has no lock yet
	if err != nil {
		return nil, err
	}
	defer all.Close()
	h := &Host{all: map[string]*Held{}, conns: map[net.Conn]bool{}, ending: make(chan struct{}), changed: make(chan struct{})}
	if h.dir, err = os.MkdirTemp(root, "p"); err != nil {
		return nil, fmt.Errorf("make a folder of sandboxes: %w", err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(h.dir)
		}
	}()
	if h.lock, err = lock(filepath.Join(h.dir, lockName), true); err != nil {
		return nil, err
	}
	h.listener, err = atSocket(h.dir, func(path string) (net.Listener, error) { return net.Listen("unix", path) })
	if err != nil {
		h.lock.Close()
		return nil, fmt.Errorf("listen in %s: %w", h.dir, err)
	}
	h.listener.(*net.UnixListener).SetUnlinkOnClose(false) // the path is another one's by then
	h.serving.Go(h.serve)
	return h, nil
}

// Dir returns the folder of the host, which Close removes.
func (h *Host) Dir() string { return h.dir }

// Note tells a later Sweep about things to remove if this process is killed.
func (h *Host) Note(v any) error {
	data, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(filepath.Join(h.dir, leftName), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note the sandboxes of this process: %w", err)
	}
	return nil
}

// Close ends the kept sandboxes, closes all connections and removes the folder.
func (h *Host) Close() {
	h.mu.Lock()
	all := h.kept()
	h.mu.Unlock()
	for _, k := range all {
		k.end()
	}
	for _, k := range all {
		<-k.gone
	}
	os.RemoveAll(h.dir)
	close(h.ending)
	_ = h.listener.Close()
	h.mu.Lock()
	for c, cut := range h.conns {
		if cut {
			c.Close()
		}
	}
	h.mu.Unlock()
	h.serving.Wait()
	h.lock.Close()
}

// kept returns the kept sandboxes. The caller has the lock.
func (h *Host) kept() (out []*Held) {
	for _, k := range h.all {
		if k.info.State == Kept {
			out = append(out, k)
		}
	}
	return out
}

// Kept describes the sandboxes that are kept.
func (h *Host) Kept() []Sandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Sandbox
	for _, k := range h.kept() {
		out = append(out, k.info)
	}
	slices.SortFunc(out, order)
	return out
}

func order(a, b Sandbox) int { return cmp.Or(a.Made.Compare(b.Made), cmp.Compare(a.ID, b.ID)) }

// Wait waits until no sandbox is kept, or the context ends. Then the caller calls Close.
func (h *Host) Wait(ctx context.Context) {
	for {
		h.mu.Lock()
		h.waits = true
		n, changed := len(h.kept()), h.changed
		h.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Add serves a sandbox until Remove. env returns further variables for commands. A nil
// host serves nothing.
func (h *Host) Add(s Sandbox, box Box, env func() map[string]string) *Held {
	if h == nil {
		return nil
	}
	s.ID, s.State, s.Made = strings.ToLower(rand.Text()[:8]), Running, time.Now()
	k := &Held{host: h, info: s, box: box, env: env, ends: make(chan struct{}), gone: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[s.ID] = k
	return k
}

// Remove ends the service of a sandbox that is not kept. The caller closes the sandbox.
func (k *Held) Remove() {
	if k == nil {
		return
	}
	k.host.mu.Lock()
	defer k.host.mu.Unlock()
	if k.info.State == Running {
		delete(k.host.all, k.info.ID)
	}
}

// Errors of Keep.
var (
	errMany = fmt.Errorf("%d sandboxes are kept already", MaxKept)
	errGone = errors.New("it is gone")
)

// Keep calls shut after d, or earlier when a command removes the sandbox, the sandbox is
// lost, or the host is closed. After an error it does not call shut.
func (k *Held) Keep(d time.Duration, shut func()) (Sandbox, error) {
	h := k.host
	select {
	case <-k.box.Lost():
		return Sandbox{}, errGone
	default:
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.kept()) >= MaxKept {
		return Sandbox{}, errMany
	}
	k.info.State, k.info.Until = Kept, time.Now().Add(d).Round(0) // a time of day
	h.serving.Go(func() {
		k.wait(k.info.Until)
		shut()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.all, k.info.ID)
		close(h.changed)
		h.changed = make(chan struct{})
		close(k.gone)
	})
	return k.info, nil
}

// lookForEnd is the longest time between two looks at the time of day. Timers stand still
// while the host is suspended.
const lookForEnd = time.Minute

// wait waits for the end of a kept sandbox.
func (k *Held) wait(until time.Time) {
	for left := time.Until(until); left > 0; left = time.Until(until) {
		t := time.NewTimer(min(left, lookForEnd))
		select {
		case <-t.C:
		case <-k.ends:
			t.Stop()
			return
		case <-k.box.Lost():
			t.Stop()
			return
		}
	}
}

func (k *Held) end() { k.ending.Do(func() { close(k.ends) }) }
