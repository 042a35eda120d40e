package main

import (
	"errors"
	"math"
	"runtime"
	"strconv"

	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/handover"
	"github.com/turngate/turngate/internal/machine"
	"github.com/turngate/turngate/internal/worker"
)

// slotsFlag is a number of rollouts at once, or "auto".
type slotsFlag struct {
	n    int
	auto bool
}

func (s *slotsFlag) String() string {
	if s.auto {
		return "auto"
	}
	return strconv.Itoa(s.n)
}
func (s *slotsFlag) Type() string { return "int|auto" }
func (s *slotsFlag) Set(text string) error {
	if text == "auto" {
		s.auto = true
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return errors.New("want a number of 1 or more, or auto")
	}
	*s = slotsFlag{n: n}
	return nil
}

// roomFlags bound the rollouts of a worker by the state of its host.
type roomFlags struct {
	slots            slotsFlag
	keepFreeMemoryMB int64
	keepFreeDiskMB   int64
}

func (f *roomFlags) add(fl *pflag.FlagSet) {
	f.slots.n = 2
	fl.Var(&f.slots, "slots", "rollouts at once; auto: as many as the memory and the CPUs of this host carry, by the use of the running rollouts")
	fl.Int64Var(&f.keepFreeMemoryMB, "keep-free-memory-mb", 0, "memory of this host that must be free for a worker to take a rollout (0: a sixteenth, at most 512; -1: any)")
	fl.Int64Var(&f.keepFreeDiskMB, "keep-free-disk-mb", 0, "disk of --state that must be free for a worker to take a rollout (0: a sixteenth, at most 1024; -1: any)")
}

func (f *roomFlags) check() []error {
	return []error{atLeast("keep-free-memory-mb", f.keepFreeMemoryMB, -1), atLeast("keep-free-disk-mb", f.keepFreeDiskMB, -1)}
}

const (
	// mostSlots bounds the slots of a worker with --slots auto.
	mostSlots = 1000
	// memoryOfASlot is the least memory that --slots auto expects of a rollout.
	memoryOfASlot = 64 << 20
)

// room returns the number of slots, and the room of this host for them. state is the
// folder of the worker's state, others measures the rollouts of other processes of the
// worker, and relieve is called to make room on its disk.
func (f *roomFlags) room(state string, others func() handover.Use, relieve func(), log zerolog.Logger) (int, *worker.Room) {
	slots := f.slots.n
	if f.slots.auto {
		slots = int(min(max(machine.Load().MemoryBytes/memoryOfASlot, int64(runtime.NumCPU())), mostSlots))
	}
	return slots, worker.NewRoom(worker.RoomConfig{
		Look: func() worker.Host { return f.look(state, relieve) }, Starts: max(8, 2*runtime.NumCPU()), Measured: f.slots.auto, Slots: slots, Others: others,
		Changed: func(full string) {
			if full != "" {
				log.Warn().Str("reason", full).Msg("no new rollouts are taken: the host has no room for another one")
			} else {
				log.Info().Msg("new rollouts are taken again")
			}
		},
	})
}

func (f *roomFlags) look(state string, relieve func()) worker.Host {
	l := machine.Load()
	h := worker.Host{CPUs: l.CPUs, Load: l.Load, Memory: l.MemoryBytes, FreeMemory: l.FreeMemoryBytes}
	h.FreeDisk, h.Disk = machine.FreeDisk(state)
	h.KeepMemory = keepFree(f.keepFreeMemoryMB, h.Memory, 512<<20)
	h.KeepDisk = keepFree(f.keepFreeDiskMB, h.Disk, 1<<30)
	if h.FreeDisk < h.KeepDisk {
		relieve()
		h.FreeDisk, _ = machine.FreeDisk(state)
	}
	return h
}

// keepFree returns the bytes of all that must stay free, of a flag in MB.
func keepFree(mb, all, most int64) int64 {
	switch {
	case mb < 0:
		return 0
	case mb == 0:
		return min(all/16, most)
	}
	return min(mb, math.MaxInt64>>20) << 20
}
