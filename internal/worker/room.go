package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/internal/telemetry"
)

const (
	// lookEvery is the time between two measurements of the host.
	lookEvery = 2 * time.Second
	// startsFor is the longest time for which a rollout counts as one that starts.
	startsFor = time.Minute
	// leastUse is the memory that a worker with RoomConfig.Measured expects of a rollout
	// as long as it knows no larger figure.
	leastUse = 64 << 20
)

// errFull is the cause of the end of a slot's wait for a request.
var errFull = errors.New("the host has no room for another rollout")

// Host tells how busy a host is. A size of 0 means that the value is not known.
type Host struct {
	CPUs                 int
	Load                 float64 // processes that run or want to, mean of the last minute
	Memory, FreeMemory   int64   // bytes
	Disk, FreeDisk       int64   // bytes
	KeepMemory, KeepDisk int64   // bytes that rollouts leave free
}

// RoomConfig bounds the rollouts of a worker.
type RoomConfig struct {
	Look   func() Host // measures the host; nil: it has always room
	Starts int         // sandboxes that are made at the same time; 0: any number
	// Measured makes the memory that the running rollouts use, and the load of the
	// host's CPUs, a limit too: for a worker with more slots than its host may carry.
	Measured bool
	Slots    int                 // most rollouts at once; 0: any number
	Others   func() handover.Use // by other processes of this worker, which use slots and memory too; nil: none
	Changed  func(full string)   // called when the worker becomes full, with the reason, and when it no longer is; nil: no call
}

// Room lets the slots of a worker take requests as long as its host has room for more
// rollouts.
type Room struct {
	RoomConfig

	mu      sync.Mutex
	seats   map[*seat]struct{}
	host    Host
	others  int    // rollouts of other processes
	idle    int64  // free memory when no rollout ran, of other processes neither
	lack    string // a reason of package telemetry, and in full words; both empty: there is room
	full    string
	changed chan struct{} // closed at the next change
}

// seat is a slot's permission to take one request.
type seat struct {
	room     *Room
	end      context.CancelCauseFunc // of its wait for a request
	taken    bool                    // it has a request
	starting bool
	timer    *time.Timer // ends starting
}

// NewRoom measures the host for the first time.
func NewRoom(c RoomConfig) *Room {
	r := &Room{RoomConfig: c, seats: map[*seat]struct{}{}, changed: make(chan struct{})}
	r.look()
	return r
}

// Run measures the host again and again until the context ends.
func (r *Room) Run(ctx context.Context) {
	if r.Look == nil && r.Others == nil {
		return
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.look()
		}
	}
}

// Full returns the reason for which the host has no room for another rollout; "" if it
// has.
func (r *Room) Full() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

// state returns the reason for which the host has no room as the metrics have it, and what
// the last measurement found.
func (r *Room) state() (lack string, memory, disk telemetry.Space) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &r.host
	return r.lack, telemetry.Space{Size: h.Memory, Free: h.FreeMemory, Keep: h.KeepMemory}, telemetry.Space{Size: h.Disk, Free: h.FreeDisk, Keep: h.KeepDisk}
}

// look measures the host. Slots that wait for a request leave their wait if there is no
// room left.
func (r *Room) look() {
	var host Host
	var others handover.Use
	if r.Look != nil {
		host = r.Look()
	}
	if r.Others != nil {
		others = r.Others()
	}
	r.mu.Lock()
	r.host, r.others = host, others.Running
	running, starting := r.count()
	if running+r.others == 0 {
		r.idle = host.FreeMemory
	} else {
		r.idle = max(r.idle, others.Idle) // this process may have measured it with rollouts of the others only
	}
	lack, full := r.short(starting)
	told := (full == "") != (r.full == "")
	r.lack, r.full = lack, full
	if full != "" {
		for s := range r.seats {
			if !s.taken {
				s.end(errFull)
			}
		}
	}
	r.news()
	r.mu.Unlock()
	if told && r.Changed != nil {
		r.Changed(full)
	}
}

// count returns the number of running rollouts, and of those among them that start.
func (r *Room) count() (running, starting int) {
	for s := range r.seats {
		if s.taken {
			running++
			if s.starting {
				starting++
			}
		}
	}
	return running, starting
}

// short returns the reason for which the host has no room for another rollout beside the
// running ones and a number of others that have yet to take their memory: as the metrics
// have it, and in full words. Both are "" if it has room.
func (r *Room) short(others int) (lack, full string) {
	h := &r.host
	if r.Slots > 0 && r.others >= r.Slots {
		return telemetry.FullProcess, fmt.Sprintf("an earlier process of this worker still runs %d rollouts", r.others)
	}
	if h.Disk > 0 && h.FreeDisk < h.KeepDisk {
		return telemetry.FullDisk, fmt.Sprintf("%s of its disk are free, and %s are to stay free", size(h.FreeDisk), size(h.KeepDisk))
	}
	if h.Memory > 0 {
		need := int64(0)
		if r.Measured {
			need = int64(others+1) * r.use()
		}
		if h.FreeMemory-need < h.KeepMemory {
			if need == 0 {
				return telemetry.FullMemory, fmt.Sprintf("%s of its memory are free, and %s are to stay free", size(h.FreeMemory), size(h.KeepMemory))
			}
			lack = telemetry.FullAuto
			if h.FreeMemory < h.KeepMemory {
				lack = telemetry.FullMemory
			}
			return lack, fmt.Sprintf("%s of its memory are free, the next rollouts may use %s of them, and %s are to stay free", size(h.FreeMemory), size(need), size(h.KeepMemory))
		}
	}
	if r.Measured && h.CPUs > 0 && h.Load > 2*float64(h.CPUs) {
		return telemetry.FullAuto, fmt.Sprintf("its load is %.1f with %d CPUs", h.Load, h.CPUs)
	}
	return "", ""
}

// use returns the memory that one of the running rollouts uses, in bytes.
func (r *Room) use() int64 {
	running, _ := r.count()
	running += r.others
	if running == 0 {
		return leastUse
	}
	return max((r.idle-r.host.FreeMemory)/int64(running), leastUse)
}

// idleMemory returns the free memory when no rollout ran, in bytes; 0: it is not known.
func (r *Room) idleMemory() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.idle
}

func size(bytes int64) string { return fmt.Sprintf("%d MB", bytes>>20) }

// news wakes the slots that wait for room.
func (r *Room) news() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// enter waits until there is room for another rollout. The context that it returns ends
// when the room ends before a request has come. The caller calls leave.
func (r *Room) enter(ctx context.Context) (context.Context, *seat, error) {
	for {
		r.mu.Lock()
		others := 0 // with a request that still starts, or without one
		for s := range r.seats {
			if s.starting {
				others++
			}
		}
		lack, _ := r.short(others)
		if (r.Slots == 0 || len(r.seats)+r.others < r.Slots) && (r.Starts == 0 || others < r.Starts) && lack == "" {
			take, end := context.WithCancelCause(ctx)
			s := &seat{room: r, end: end, starting: true}
			r.seats[s] = struct{}{}
			r.mu.Unlock()
			return take, s, nil
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// took says that the slot has a request.
func (s *seat) took() {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	s.taken = true
	s.timer = time.AfterFunc(startsFor, s.started)
}

// started says that the sandboxes of the rollout are made.
func (s *seat) started() {
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	if s.starting {
		s.starting = false
		s.room.news()
	}
}

// leave gives the permission back.
func (s *seat) leave() {
	s.end(nil)
	s.room.mu.Lock()
	defer s.room.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.starting = false
	delete(s.room.seats, s)
	s.room.news()
}
