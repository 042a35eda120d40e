// Package history holds the lines that the agents and trainers of a chaos run
// write, and the words between a process and the run.
package history

import "github.com/turngate/turngate/schema"

// Hello is the line that an agent sends to the run when it begins. The connection
// stays open until the agent has ended or its process has died.
type Hello struct {
	Rollout schema.ID `json:"rollout"` // from the agent's environment, which its trainer has set
	Box     string    `json:"box"`     // name of the sandbox's folder
}

// Read is an answer that an agent has read.
type Read struct {
	Rollout  schema.ID `json:"rollout"`
	Box      string    `json:"box"`
	Question int       `json:"question"`
	Gens     []string  `json:"gens"`  // names of the generations in the text
	Whole    bool      `json:"whole"` // the answer came to its end
	Text     string    `json:"text"`
}

// Trained is a record of a trainer.
type Trained struct {
	Op          string        `json:"op"` // submit, generate, result
	ID          schema.ID     `json:"id,omitempty"`
	Max         int           `json:"max,omitempty"` // tries
	Key         string        `json:"key,omitempty"`
	Gen         string        `json:"gen,omitempty"`  // in the text
	Name        string        `json:"name,omitempty"` // of the generation, in a result
	Text        string        `json:"text,omitempty"` // that this generation will have
	Attempt     int           `json:"attempt,omitempty"`
	Status      schema.Status `json:"status,omitempty"`
	Generations []string      `json:"generations,omitempty"` // call/name
}

// Lines that a process prints.
const (
	Ready = "ready"
	Wave  = "wave"  // of a trainer: a wave has its results
	Ended = "ended" // of a worker: it has ended, and its connections wait for the run, see PathClose
)

// Paths of the HTTP server of each process.
const (
	PathGoroutines = "/goroutines" // all stacks, by the runtime
	PathHeap       = "/heap"       // bytes in use after a collection
	PathClock      = "/clock"      // POST with step=1h: steps the wall clock
	PathClose      = "/close"      // POST: an ended worker closes its connections
	PathExit       = "/exit"       // POST: the process ends
)
