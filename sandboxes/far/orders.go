// Package far makes local sandboxes on another host over a byte stream. A backend
// brings the stream: one end is the standard input and output of Serve there, the
// other end is a Line here.
package far

import (
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Mark begins each line that turngate writes on the other side. Lines without it
// come from other programs, such as a login shell.
const Mark = "turngate-far "

// Ready is the first line of Serve, after its mark.
const Ready = "ready"

// maxOrder bounds an order.
const maxOrder = 8 << 20

// order is a line of JSON that the worker sends. One field says what to do; each
// order has one answer.
type order struct {
	Have   string  `json:"have,omitempty"` // digest of a tree
	Put    *put    `json:"put,omitempty"`  // the tree follows
	Sweep  string  `json:"sweep,omitempty"`
	Keep   bool    `json:"keep,omitempty"` // after an answer with a rollout
	Create *create `json:"create,omitempty"`
}

type put struct {
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
}

// create has the fields of a sandboxes.Spec that a local sandbox has. After the
// answer the line carries the bytes of the box.
type create struct {
	Owner   string            `json:"owner"`
	Rollout schema.ID         `json:"rollout"`
	Attempt int               `json:"attempt"`
	Part    string            `json:"part,omitempty"`
	CPUs    float64           `json:"cpus,omitempty"`
	Memory  int64             `json:"memory,omitempty"`
	Disk    int64             `json:"disk,omitempty"`
	Pids    int64             `json:"pids,omitempty"`
	GPUs    int               `json:"gpus,omitempty"`
	Strict  []string          `json:"strict,omitempty"`
	User    string            `json:"user,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Mounts  []mount           `json:"mounts,omitempty"`
	Ready   time.Duration     `json:"ready,omitempty"`
	Life    time.Duration     `json:"life,omitempty"`
	Lost    time.Duration     `json:"lost,omitempty"`
}

// mount shows a tree in the sandbox.
type mount struct {
	Digest string `json:"digest"`
	Guest  string `json:"guest"`
}

// answer is a line of JSON after a mark.
type answer struct {
	Has         bool                        `json:"has,omitempty"`
	Rollout     schema.ID                   `json:"rollout,omitempty"` // Sweep: keep this one?
	Swept       int                         `json:"swept,omitempty"`
	Secret      []byte                      `json:"secret,omitempty"` // of the box
	Workdir     string                      `json:"workdir,omitempty"`
	Notes       []note                      `json:"notes,omitempty"`
	Unsupported *sandboxes.UnsupportedError `json:"unsupported,omitempty"`
	Error       string                      `json:"error,omitempty"`
}

// note is a limit that is not enforced.
type note struct {
	Limit string `json:"limit"`
	Text  string `json:"text"`
}

// Exit statuses of Serve after the end of a box.
const (
	exitLost   = 81
	exitMemory = 82
	exitKilled = 83
)

// Lost returns the reason for the end of a sandbox in an exit status of Serve: an
// error that wraps sandboxes.ErrLost. ok is false for a status with no such reason.
func Lost(status int) (err error, ok bool) { //nolint:revive // the error is the value
	switch status {
	case exitMemory:
		return sandboxes.ErrMemory, true
	case exitKilled:
		return sandboxes.ErrKilled, true
	case exitLost:
		return sandboxes.ErrLost, true
	}
	return nil, false
}
