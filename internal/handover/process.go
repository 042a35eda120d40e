// Package handover lets a new process of a worker follow an old one. The processes of a
// worker share its state folder. One of them takes rollouts: it has the turn. The others
// have retired: each runs the rollouts that it took before, and ends with them. Locks of
// files say which processes live, so the kernel notes the end of one that was killed.
package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/internal/rawjson"
)

// Most is the largest number of processes that a worker has at the same time.
const Most = 4

// lookEvery is the time between two looks at the other processes.
const lookEvery = time.Second

// ErrBusy means that another process of the worker takes rollouts.
var ErrBusy = errors.New("another worker uses the state directory")

// Process is a process of a worker. Its methods do nothing on nil, a process that has no
// others beside it.
type Process struct {
	state  string
	number int      // its place, below Most; no two processes that live have the same
	place  *os.File // locked while the process lives
	turn   *os.File // locked while the process takes rollouts; nil: it does not

	asked chan struct{} // closed when another process asks for the turn

	mu      sync.Mutex
	pipe    *os.File // hears requests for the turn; nil: none are heard
	record  record
	retired bool
	ended   bool
	others  map[int]record // retired processes that lived at the last look, by their places
}

// record is the file of a process that began to take rollouts and has not ended as it
// should.
type record struct {
	Instance string `json:"instance"`
	Use      Use    `json:"use"`
}

// Use is the part of a host that the rollouts of a process take.
type Use struct {
	Running int   `json:"running"`        // rollouts, at most
	Idle    int64 `json:"idle,omitempty"` // bytes of memory that were free when no rollout ran; 0: not known
}

// Join takes a place in a state folder, which it makes if it is missing. The caller calls
// Leave.
func Join(state string) (*Process, error) {
	for _, dir := range []string{state, filepath.Join(state, "processes")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the state directory: %w", err)
		}
		if err := owned.Check(dir); err != nil {
			return nil, fmt.Errorf("the worker's state: %w", err)
		}
	}
	// A place with the record of a process that was killed comes last: another process has
	// yet to remove the rest of that one, and a lock here would say that it lives.
	var places, recorded []int
	p := &Process{state: state, asked: make(chan struct{}), others: map[int]record{}}
	for n := range Most {
		if _, err := os.Lstat(p.file(n, ".json")); errors.Is(err, fs.ErrNotExist) {
			places = append(places, n)
		} else {
			recorded = append(recorded, n)
		}
	}
	for _, p.number = range append(places, recorded...) {
		var err error
		if p.place, err = lock(p.file(p.number, ".lock")); err == nil {
			return p, nil
		} else if !errors.Is(err, ErrBusy) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%d processes of this worker still run rollouts in %s: wait until one of them has ended", Most, state)
}

// Place returns the place of this process among the live ones, from 0.
func (p *Process) Place() int {
	if p == nil {
		return 0
	}
	return p.number
}

func (p *Process) file(number int, end string) string {
	return filepath.Join(p.state, "processes", strconv.Itoa(number)+end)
}

// lock opens and locks a file; ErrBusy: another process has it.
func lock(path string) (*os.File, error) {
	if err := owned.Check(path); err != nil {
		return nil, fmt.Errorf("the worker's state: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrBusy
		}
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	return f, nil
}

// Begin takes the turn; ErrBusy: another process has it.
func (p *Process) Begin() (err error) {
	p.turn, err = lock(filepath.Join(p.state, "worker.lock"))
	return err
}

// Start looks at the places of the other processes before this one takes rollouts as an
// instance, at most most at once. It calls clean for the place of each process that has
// ended, its own included, and from then on knows the ones that live.
func (p *Process) Start(instance string, most int, clean func(number int)) error {
	if p == nil {
		clean(0)
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for n := range Most {
		if n == p.number {
			clean(n)
			continue
		}
		switch place, err := lock(p.file(n, ".lock")); {
		case errors.Is(err, ErrBusy):
			if r, err := p.read(n); err == nil {
				p.others[n] = r
			} else if !errors.Is(err, fs.ErrNotExist) { // without a record it takes no rollouts yet
				return err
			}
		case err != nil:
			return err
		default:
			clean(n)
			err := p.forget(n)
			place.Close()
			if err != nil {
				return err
			}
		}
	}
	p.record = record{Instance: instance, Use: Use{Running: most}}
	return p.write()
}

func (p *Process) read(number int) (r record, err error) {
	data, err := owned.Read(p.file(number, ".json"))
	if err == nil {
		err = rawjson.Plain(json.Unmarshal(data, &r))
	}
	if err != nil {
		return r, fmt.Errorf("read the record of another process of this worker: %w", err)
	}
	return r, nil
}

// write writes the record of this process. The caller holds the mutex.
func (p *Process) write() error {
	data, err := json.Marshal(p.record)
	if err == nil {
		err = owned.Replace(p.file(p.number, ".json"), data)
	}
	if err != nil {
		return fmt.Errorf("write the record of this process: %w", err)
	}
	return nil
}

func (p *Process) forget(number int) error {
	if err := os.Remove(p.file(number, ".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of a process that has ended: %w", err)
	}
	return nil
}

// Lives reports whether an instance is that of another process that lived at the last
// look.
func (p *Process) Lives(instance string) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.others {
		if r.Instance == instance {
			return true
		}
	}
	return false
}

// Shared reports whether the worker may have another process with rollouts.
func (p *Process) Shared() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retired || len(p.others) > 0 || p.record.Instance == "" // it has not looked yet
}

// Others returns the use of the other processes together.
func (p *Process) Others() (u Use) {
	if p == nil {
		return u
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for number, r := range p.others {
		if now, err := p.read(number); err == nil && now.Instance == r.Instance {
			r = now
			p.others[number] = r
		}
		u.Running += r.Use.Running
		u.Idle = max(u.Idle, r.Use.Idle)
	}
	return u
}

// Watch waits for the end of the other processes until the context ends. It calls killed
// for one that did not end as it should, and again after an error. It calls killed for
// several processes at the same time.
func (p *Process) Watch(ctx context.Context, killed func(ctx context.Context, number int, instance string) error) {
	if p == nil {
		return
	}
	p.mu.Lock()
	numbers := slices.Collect(maps.Keys(p.others))
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, n := range numbers {
		all.Go(func() {
			tick := time.NewTicker(lookEvery)
			defer tick.Stop()
			for !p.look(ctx, n, killed) {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
	all.Wait()
}

// look forgets a process that has ended, if nothing of it is left. Then it returns true.
func (p *Process) look(ctx context.Context, number int, killed func(context.Context, int, string) error) bool {
	place, locked := lock(p.file(number, ".lock"))
	if locked == nil {
		defer place.Close()
	}
	r, err := p.read(number)
	if locked != nil && !errors.Is(err, fs.ErrNotExist) { // it lives; without a record another one has its place
		return false
	}
	if err == nil {
		if err = killed(ctx, number, r.Instance); err == nil {
			err = p.forget(number)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.others, number)
	return true
}

// Ended says that nothing of the process is left, and that the other workers know its end.
func (p *Process) Ended() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// Leave gives the places back. To the other processes, one that has begun and left without a
// call of Ended was killed.
func (p *Process) Leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended && p.record.Instance != "" {
		_ = p.forget(p.number) // the next process cleans its place
	}
	p.giveTurn()
	p.place.Close()
}

// giveTurn lets another process take rollouts. The caller holds the mutex.
func (p *Process) giveTurn() {
	if p.pipe != nil {
		p.pipe.Close()
		p.pipe = nil
	}
	if p.turn != nil {
		p.turn.Close()
		p.turn = nil
	}
}
