package worker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/internal/telemetry"
)

// hosts measures a host that the test changes.
type hosts struct {
	mu  sync.Mutex
	now Host
}

func (h *hosts) look() Host {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hosts) set(change func(*Host)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.now)
}

func wide() Host {
	return Host{CPUs: 2, Memory: 8 << 30, FreeMemory: 4 << 30, KeepMemory: 512 << 20, Disk: 100 << 30, FreeDisk: 50 << 30, KeepDisk: 1 << 30}
}

func mustEnter(t *testing.T, r *Room) (context.Context, *seat) {
	t.Helper()
	take, s, err := r.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return take, s
}

func TestAFullHostTakesNoRollout(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*Host)
		measured bool
		lack     string
		want     string
	}{
		"memory":       {func(h *Host) { h.FreeMemory = 100 << 20 }, false, "memory", "100 MB of its memory are free, and 512 MB are to stay free"},
		"disk":         {func(h *Host) { h.FreeDisk = 10 << 20 }, false, "disk", "10 MB of its disk are free, and 1024 MB are to stay free"},
		"memory spent": {func(h *Host) { h.FreeMemory = 500 << 20 }, true, "memory", "the next rollouts may use"},
		"memory ahead": {func(h *Host) { h.FreeMemory = 550 << 20 }, true, "auto", "the next rollouts may use"},
		"load":         {func(h *Host) { h.Load = 4.5 }, true, "auto", "its load is 4.5 with 2 CPUs"},
	} {
		t.Run(name, func(t *testing.T) {
			host := &hosts{now: wide()}
			var told []string
			r := NewRoom(RoomConfig{Look: host.look, Measured: c.measured, Changed: func(full string) { told = append(told, full) }})
			wait, waiting := mustEnter(t, r)
			run, running := mustEnter(t, r)
			running.took()
			host.set(c.change)
			r.look()
			if full := r.Full(); !strings.Contains(full, c.want) {
				t.Errorf("the reason is %q, want %q", full, c.want)
			}
			h := host.look()
			if lack, memory, disk := r.state(); lack != c.lack || memory != (telemetry.Space{Size: h.Memory, Free: h.FreeMemory, Keep: h.KeepMemory}) || disk != (telemetry.Space{Size: h.Disk, Free: h.FreeDisk, Keep: h.KeepDisk}) {
				t.Errorf("the metrics have %q, %+v, %+v, want %q", lack, memory, disk, c.lack)
			}
			<-wait.Done()
			if err := context.Cause(wait); !errors.Is(err, errFull) {
				t.Errorf("the slot that waits ends with %v", err)
			}
			waiting.leave()
			if run.Err() != nil {
				t.Error("a rollout that runs has lost its seat")
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if _, _, err := r.enter(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("a full host lets a slot in: %v", err)
			}
			got := make(chan error, 1)
			go func() {
				_, s, err := r.enter(t.Context())
				if err == nil {
					s.leave()
				}
				got <- err
			}()
			host.set(func(h *Host) { *h = wide() })
			r.look()
			if err := <-got; err != nil {
				t.Errorf("with room again: %v", err)
			}
			if lack, _, _ := r.state(); lack != "" {
				t.Errorf("with room again the metrics have %q", lack)
			}
			running.leave()
			if len(told) != 2 || told[0] == "" || told[1] != "" {
				t.Errorf("told %q", told)
			}
		})
	}
}

func TestAFixedNumberOfSlotsIgnoresTheLoad(t *testing.T) {
	host := &hosts{now: wide()}
	host.now.Load, host.now.FreeMemory = 50, 513<<20
	r := NewRoom(RoomConfig{Look: host.look})
	if full := r.Full(); full != "" {
		t.Errorf("full: %s", full)
	}
}

func TestStartsAreBounded(t *testing.T) {
	r := NewRoom(RoomConfig{Starts: 2})
	_, one := mustEnter(t, r)
	_, two := mustEnter(t, r)
	one.took()
	two.took()
	third := make(chan *seat, 1)
	go func() {
		_, s, err := r.enter(t.Context())
		if err != nil {
			t.Error(err)
		}
		third <- s
	}()
	one.started()
	one.started() // twice, as the timer may
	s := <-third
	s.leave()
	one.leave()
	two.leave()
	if len(r.seats) != 0 {
		t.Errorf("%d seats are left", len(r.seats))
	}
}

// TestTheUseOfRunningRolloutsBoundsTheNext: two rollouts took 1 GB each, so that a
// third one has no room.
func TestTheUseOfRunningRolloutsBoundsTheNext(t *testing.T) {
	host := &hosts{now: wide()}
	host.now.FreeMemory = 3 << 30
	r := NewRoom(RoomConfig{Look: host.look, Measured: true})
	for range 2 {
		_, s := mustEnter(t, r)
		defer s.leave()
		s.took()
		s.started()
	}
	host.set(func(h *Host) { h.FreeMemory = 1 << 30 })
	r.look()
	if full := r.Full(); !strings.Contains(full, "may use 1024 MB") {
		t.Errorf("the reason is %q", full)
	}
}

// TestProcessesShareTheSlots: rollouts of another process of the worker use slots of this
// one until they have ended.
func TestProcessesShareTheSlots(t *testing.T) {
	t.Parallel()
	others := 1
	r := NewRoom(RoomConfig{Slots: 2, Others: func() handover.Use { return handover.Use{Running: others} }})
	_, one := mustEnter(t, r)
	one.took()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.enter(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("three rollouts have two slots: %v", err)
	}
	others = 2
	r.look()
	if full := r.Full(); full != "an earlier process of this worker still runs 2 rollouts" {
		t.Errorf("the reason is %q", full)
	}
	if lack, _, _ := r.state(); lack != telemetry.FullProcess {
		t.Errorf("the metrics have %q", lack)
	}
	others = 0
	r.look()
	_, two := mustEnter(t, r)
	two.leave()
	one.leave()
	if full := r.Full(); full != "" {
		t.Errorf("the reason is %q", full)
	}
}

// TestRolloutsOfTheProcessBeforeCountWithTheirMemory: it runs two with 1 GB each, and told the
// free memory from before them. When one of them ends, one begins here.
func TestRolloutsOfTheProcessBeforeCountWithTheirMemory(t *testing.T) {
	t.Parallel()
	host, others := &hosts{now: wide()}, handover.Use{}
	host.now.FreeMemory = 2 << 30
	r := NewRoom(RoomConfig{Look: host.look, Measured: true, Others: func() handover.Use { return others }})
	others = handover.Use{Running: 2, Idle: 4 << 30}
	r.look()
	_, one := mustEnter(t, r)
	one.took()
	one.started()
	others.Running = 1
	host.set(func(h *Host) { h.FreeMemory = 1 << 30 })
	r.look()
	if full := r.Full(); !strings.Contains(full, "may use 1536 MB") {
		t.Errorf("the reason is %q", full)
	}
	if got := r.idleMemory(); got != 4<<30 {
		t.Errorf("a process that follows hears of %d bytes", got)
	}
	one.leave()
	others = handover.Use{}
	host.set(func(h *Host) { h.FreeMemory = 3 << 30 })
	r.look()
	if got := r.idleMemory(); got != 3<<30 {
		t.Errorf("with no rollout %d bytes are free", got)
	}
}
