package schema

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
)

// ID names one rollout: "<trainer>-<suffix>". The trainer's name in front
// binds a rollout to the trainer that submitted it. An ID is safe as one NATS
// token and as a file name.
type ID string

const (
	maxIDLen      = 40
	maxTrainerLen = 20
)

// reservedTrainer would make "rollout.requests" ambiguous.
const reservedTrainer = "requests"

// ParseID checks s against the rules for rollout ids.
func ParseID(s string) (ID, error) {
	if err := checkToken("id", s, maxIDLen); err != nil {
		return "", err
	}
	tid, suffix, ok := strings.Cut(s, "-")
	if !ok || suffix == "" {
		return "", invalid("id", s, `want "<trainer>-<suffix>"`)
	}
	if err := CheckTrainer(tid); err != nil {
		return "", invalid("id", s, "its part before the first '-' must be a trainer name: "+err.Error())
	}
	return ID(s), nil
}

// NewID joins a trainer's name and a suffix. A suffix that is no valid token,
// or is too long, is replaced by its hash, so any foreign id can be used; keep
// the original in the request's labels.
func NewID(trainer, suffix string) (ID, error) {
	if err := CheckTrainer(trainer); err != nil {
		return "", err
	}
	if id, err := ParseID(trainer + "-" + suffix); err == nil {
		return id, nil
	}
	if suffix == "" {
		return "", invalid("id", suffix, "the suffix must not be empty")
	}
	sum := sha256.Sum256([]byte(suffix))
	room := min(26, maxIDLen-len(trainer)-1)
	hash := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
	return ParseID(trainer + "-" + hash[:room])
}

// Trainer returns the trainer's name that the ID carries.
func (id ID) Trainer() string {
	tid, _, _ := strings.Cut(string(id), "-")
	return tid
}

// CheckTrainer checks a trainer's name: ^[a-z0-9_]{1,20}$ and not "requests".
func CheckTrainer(s string) error {
	if s == "" || len(s) > maxTrainerLen {
		return invalid("trainer", s, fmt.Sprintf("want 1 to %d characters of a-z, 0-9, _", maxTrainerLen))
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_') {
			return invalid("trainer", s, "want only a-z, 0-9, _")
		}
	}
	if s == reservedTrainer {
		return invalid("trainer", s, "this name is reserved")
	}
	return nil
}

// CheckToken checks a name that is used as one token of a subject, such as a
// worker's name or a shard: ^[A-Za-z0-9_-]{1,40}$. field names it in the error.
func CheckToken(field, s string) error { return checkToken(field, s, maxIDLen) }

func checkToken(field, s string, limit int) error {
	if s == "" || len(s) > limit {
		return invalid(field, s, fmt.Sprintf("want 1 to %d characters of A-Z, a-z, 0-9, _ and -", limit))
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return invalid(field, s, "want only A-Z, a-z, 0-9, _ and -")
		}
	}
	return nil
}
