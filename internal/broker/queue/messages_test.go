package queue

import "iter"

// messages is a set of the sequences of messages.
type messages uint16

// The sequences of a small world. 1 and 2 are messages of the trainer on a lane.
const (
	remade = 3 // the janitor's on the lane
	moved  = 4 // the janitor's on the plain lane
	// The copies in a class have several sequences: a message that is stored after
	// another one is gone has its own.
	firstDelayed = 5
	firstUnfit   = 8
	afterParked  = 11
)

const parkedMessages = messages(1<<afterParked - 1<<firstDelayed)

// only is the set of one message; sequence 0 is none.
func only(m uint8) messages { return messages(1) << m &^ 1 }

func (s messages) has(m uint8) bool { return s&only(m) != 0 }

func (s messages) all() iter.Seq[uint8] {
	return func(yield func(uint8) bool) {
		for m := uint8(1); m < afterParked; m++ {
			if s.has(m) && !yield(m) {
				return
			}
		}
	}
}

// place is a part of the queue that has a consumer.
type place uint8

const (
	onLane  place = iota
	inDelay       // subjects.ClassDelay
	inNeeds       // the class of the request's needs
)

// placeOf returns the place of a message.
func placeOf(m uint8) place {
	switch {
	case m >= firstUnfit:
		return inNeeds
	case m >= firstDelayed:
		return inDelay
	default:
		return onLane
	}
}

// copies returns the sequences that a class has.
func (p place) copies() messages {
	if p == inDelay {
		return 1<<firstUnfit - 1<<firstDelayed
	}
	return 1<<afterParked - 1<<firstUnfit
}

// places is a set of classes.
type places uint8

func (s places) has(p place) bool { return p == onLane || s&(1<<p) != 0 }
