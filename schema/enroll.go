package schema

import (
	"strings"
	"unicode"
)

// Enroll asks that a host becomes a machine. The host sends it again to learn what became
// of it.
type Enroll struct {
	V       int    `json:"v"`
	Machine string `json:"machine"` // the name that the host wants to have
	Key     string `json:"key"`     // public part of its nkey; the seed stays on the host
	Host    string `json:"host,omitempty"`
	System  string `json:"system,omitempty"` // such as linux/amd64
	Version string `json:"version,omitempty"`
	// Check asks only whether the key is that of the machine now.
	Check bool `json:"check,omitempty"`
	// Proof is the key's signature of the lines "turngate enroll", machine, key, host, system
	// and version, with a line feed between two of them.
	Proof []byte `json:"proof"`
}

// maxEnrollText is the largest size in bytes of a text of an Enroll for people.
const maxEnrollText = 100

// check checks the message, but not its proof.
func (e *Enroll) check() error {
	if err := CheckToken("machine", e.Machine); err != nil {
		return err
	}
	if err := checkToken("key", e.Key, 64); err != nil {
		return err
	}
	for _, f := range []struct{ name, value string }{{"host", e.Host}, {"system", e.System}, {"version", e.Version}} {
		if len(f.value) > maxEnrollText || strings.ContainsFunc(f.value, unicode.IsControl) {
			return invalid(f.name, f.value, "want at most 100 bytes without control characters")
		}
	}
	return nil
}

// Signed returns the bytes that Proof signs.
func (e *Enroll) Signed() []byte {
	return []byte(strings.Join([]string{"turngate enroll", e.Machine, e.Key, e.Host, e.System, e.Version}, "\n"))
}

// Enrolled answers an Enroll. All hosts that enroll may hear it, so that it names none.
type Enrolled struct {
	V          int    `json:"v"`
	State      string `json:"state"`
	Text       string `json:"text,omitempty"`        // of an invalid request: the reason, for people
	IntervalMS int64  `json:"interval_ms,omitempty"` // least time until the host may ask again
	LeftMS     int64  `json:"left_ms,omitempty"`     // time until the request expires
}

// States of an Enrolled.
const (
	EnrollPending    = "pending"    // not decided yet
	EnrollAuthorized = "authorized" // the key is the machine's
	EnrollDenied     = "denied"     // an operator has denied the request
	EnrollExpired    = "expired"    // not decided in time
	EnrollSlowDown   = "slow_down"  // the host asks too often
	EnrollFull       = "full"       // too many requests wait
	EnrollTaken      = "taken"      // another request has the code of this key: want another key
	EnrollRevoked    = "revoked"    // the answer to Check: the key is not that of the machine
	EnrollInvalid    = "invalid"    // the request is malformed, or its proof is wrong
)

func (e *Enrolled) check() error {
	if e.State == "" || len(e.State) > maxEnrollText {
		return invalid("state", e.State, "want a state such as pending")
	}
	return nil
}
