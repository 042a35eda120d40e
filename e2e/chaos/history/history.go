// Package history holds the lines that the processes of a chaos run write.
package history

import "github.com/turngate/turngate/schema"

// Box is what a sandbox, or the agent in it, writes down.
type Box struct {
	Op       string    `json:"op"` // create, close, read
	Box      string    `json:"box"`
	PID      int       `json:"pid"`
	At       int64     `json:"at"` // Unix ns
	Worker   string    `json:"worker,omitempty"`
	Rollout  schema.ID `json:"rollout,omitempty"`
	Attempt  int       `json:"attempt,omitempty"`
	Question int       `json:"question"`
	Try      int       `json:"try,omitempty"`
	Gen      string    `json:"gen,omitempty"` // that the agent read
}

// Trained is what a trainer writes down.
type Trained struct {
	Op          string        `json:"op"` // submit, generate, result
	ID          schema.ID     `json:"id,omitempty"`
	Max         int           `json:"max,omitempty"` // tries
	Key         string        `json:"key,omitempty"`
	Gen         string        `json:"gen,omitempty"`
	Attempt     int           `json:"attempt,omitempty"`
	Status      schema.Status `json:"status,omitempty"`
	Generations []string      `json:"generations,omitempty"`
}

// Footprint is what a process takes at a moment.
type Footprint struct {
	Heap       int64 `json:"heap"` // bytes in use after a collection
	Goroutines int64 `json:"goroutines"`
	Files      int64 `json:"files"` // open descriptors
}

// FootprintLine begins the line in which a process tells its footprint.
const FootprintLine = "footprint "

// Left is what a worker that ended by itself still has.
type Left struct {
	Open          int    `json:"open"` // sandboxes
	Subscriptions int    `json:"subscriptions"`
	Leak          string `json:"leak,omitempty"` // goroutines
}
