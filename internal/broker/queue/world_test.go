package queue

import (
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// A small world: a store, a queue with one or two messages of one rollout, two
// workers with a slot each and a third without slots, which serves the trainer's
// cancel and is the janitor. Every decision in it is made by decide.

const (
	maxTries   = 2
	thirdParty = 2 // index of the worker without slots
)

// kept is a state as the store has it; its sequence is 0 if there is none.
type kept struct {
	status         uint8 // index of statuses
	attempt, tries uint8
	owner          int8 // -1: none
	message        uint8
	seq            uint8
}

var statuses = []schema.Status{ //nolint:gochecknoglobals // a constant table
	"", schema.StatusQueued, schema.StatusRunning, schema.StatusCancelling, schema.StatusDone, schema.StatusFailed, schema.StatusCancelled, schema.StatusDead,
}

func number(s schema.Status) uint8 {
	for i, x := range statuses {
		if x == s {
			return uint8(i)
		}
	}
	panic(s)
}

func (k kept) terminal() bool { return k.status >= number(schema.StatusDone) }

func (k kept) record() broker.Record[schema.State] {
	s := schema.State{Status: statuses[k.status], Attempt: int(k.attempt), Tries: int(k.tries), OwnerSeq: uint64(k.message)}
	if k.owner >= 0 && k.seq > 0 {
		s.Worker, s.Instance = name(int(k.owner)), "i"
	}
	return broker.Record[schema.State]{Value: s, Seq: uint64(k.seq)}
}

func (k kept) with(s schema.State, seq uint8) kept {
	out := kept{status: number(s.Status), attempt: uint8(s.Attempt), tries: uint8(s.Tries), owner: -1, message: uint8(s.OwnerSeq), seq: seq}
	for i := range 3 {
		if s.Worker == name(i) {
			out.owner = int8(i)
		}
	}
	return out
}

func name(i int) string { return string(rune('a' + i)) }

// thread is a worker that resolves a rollout.
type thread struct {
	busy, known, moved, copied, watched, spend, between bool
	why                                                 ask
	message, attempt                                    uint8
	rec                                                 kept
	lease                                               leaseStatus
	stored                                              resultStatus
	queue                                               queueStatus
	moveStep                                            moveStep // of a worker that parks, and of the janitor that moves a message
	to                                                  place    // of a worker that parks
}

type answer struct{ status, attempt uint8 } // a stored result

type worker struct {
	dead, stalled bool   // stalled: its lease has lapsed, but it goes on
	unfit         bool   // it lacks something that the request needs
	knows         places // classes
	job, ran      uint8
	rec           kept // the job's
	take, end     thread
}

type world struct {
	state   kept
	result  answer
	copied  bool
	queue   messages
	workers [2]worker
	third   thread
	cancel  bool // the trainer wants it to end

	single bool     // it starts with one message
	parks  bool     // messages can be parked, and seen is kept
	late   bool     // the request has a delay
	seen   messages // that were delivered before
	made   places   // with a consumer
	full   bool     // the trainer's records are above their bound

	crashes, losses, stalls, wipes, cancels, fails, drains, uncopied, turns, recounts, fills, heirs uint8 // that may still come
}

func (w world) lease(owner int8) leaseStatus {
	if owner < 0 || owner < thirdParty && (w.workers[owner].dead || w.workers[owner].stalled) {
		return leaseAbsent
	}
	return leaseAlive
}

// stale is the sequence of a state that was replaced.
const stale = 255

// plain returns the world with sequences that only tell whether a snapshot of the
// state is the newest.
func (w world) plain() world {
	at := w.state.seq
	if at == 0 {
		return w
	}
	fresh := func(k *kept) {
		switch k.seq {
		case 0:
		case at:
			k.seq = 1
		default:
			k.seq = stale
		}
	}
	for i := range w.workers {
		x := &w.workers[i]
		fresh(&x.rec)
		fresh(&x.take.rec)
		fresh(&x.end.rec)
	}
	fresh(&w.third.rec)
	w.state.seq = 1
	return w
}
