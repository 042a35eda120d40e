package schema

// State is the record of a rollout's owner. It alone decides which worker runs
// the rollout; the queue only wakes workers. Every write is a compare-and-set on
// the sequence of the last one.
type State struct {
	V        int    `json:"v"`
	ID       ID     `json:"id"`
	Trainer  string `json:"trainer"`
	Status   Status `json:"status"`
	Attempt  int    `json:"attempt"`             // only grows, and fences earlier attempts
	Tries    int    `json:"tries"`               // counts against max_attempts
	OwnerSeq uint64 `json:"owner_seq,omitempty"` // stream sequence of the owner's queue message
	Ack      string `json:"ack,omitempty"`       // ack subject of that message, so that a successor can release it at once
	Worker   string `json:"worker,omitempty"`
	Instance string `json:"instance,omitempty"`
	Since    int64  `json:"since,omitempty"` // Unix ms, for people
	Fault    *Fault `json:"fault,omitempty"` // of the last try that failed, or of the cancel, or of the result
}

// Owned reports whether a worker has the rollout.
func (s *State) Owned() bool { return s.Status == StatusRunning || s.Status == StatusCancelling }

func (s *State) check() error {
	if _, err := ParseID(string(s.ID)); err != nil {
		return err
	}
	if err := checkOneOf("status", string(s.Status), string(StatusQueued), string(StatusRunning), string(StatusCancelling),
		string(StatusDone), string(StatusFailed), string(StatusCancelled), string(StatusDead)); err != nil {
		return err
	}
	if err := checkRange("attempt", s.Attempt, 0, 1<<30); err != nil {
		return err
	}
	return checkRange("tries", s.Tries, 0, 1<<30)
}

// Hint tells a trainer that a result was committed. The stream is the truth;
// a lost hint costs time only.
//
// A hint with a fault is the only answer to a request that can have no result, because its id
// is missing or another trainer's.
type Hint struct {
	V     int    `json:"v"`
	ID    ID     `json:"id"`              // with a fault: the request's own, empty if it cannot be read
	Fault *Fault `json:"fault,omitempty"` // the reason for refusing the request
}

func (h *Hint) check() error {
	if h.Fault == nil {
		_, err := ParseID(string(h.ID))
		return err
	}
	if err := checkText("id", string(h.ID), maxName); err != nil {
		return err
	}
	return h.Fault.check()
}
