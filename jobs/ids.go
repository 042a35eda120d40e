package jobs

import (
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/turngate/turngate/schema"
)

// NewGroup returns a new id for the rollouts of one task: a ULID.
func NewGroup() string { return ulid.Make().String() }

// RolloutID returns the id of a rollout of a trainer. It consists of the random
// part of its group's id and of numbers, such as its index in the group.
func RolloutID(trainer, group string, numbers ...int) (schema.ID, error) {
	parts := []string{group[10:]}
	for _, n := range numbers {
		parts = append(parts, strconv.Itoa(n))
	}
	return schema.NewID(trainer, strings.Join(parts, "-"))
}
