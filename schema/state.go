package schema

// State is the record that decides who runs a rollout. It is written only by
// compare-and-set on its last sequence; the queue merely wakes workers.
type State struct {
	V        int    `json:"v"`
	ID       ID     `json:"id"`
	Trainer  string `json:"trainer"`
	Status   Status `json:"status"`
	Attempt  int    `json:"attempt"`             // the fence: only grows
	Tries    int    `json:"tries"`               // counts against max_attempts
	OwnerSeq uint64 `json:"owner_seq,omitempty"` // stream sequence of the queue message that the owner holds
	Ack      string `json:"ack,omitempty"`       // where that message is settled, so that a successor can free it at once
	Worker   string `json:"worker,omitempty"`
	Instance string `json:"instance,omitempty"`
	Since    int64  `json:"since,omitempty"` // Unix ms, for people
	Fault    *Fault `json:"fault,omitempty"` // why the last try failed
}

// Owned reports whether a worker has the rollout.
func (s *State) Owned() bool { return s.Status == StatusRunning || s.Status == StatusCancelling }

// Validate checks the record.
func (s *State) Validate() error {
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
type Hint struct {
	V  int `json:"v"`
	ID ID  `json:"id"`
}

// Validate checks the hint.
func (h *Hint) Validate() error {
	_, err := ParseID(string(h.ID))
	return err
}
