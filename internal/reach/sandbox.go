package reach

import (
	"net"
	"time"

	"github.com/turngate/turngate/schema"
)

// Sandbox describes a sandbox of a Host.
type Sandbox struct {
	ID      string    `json:"id"`
	Task    string    `json:"task"`
	Image   string    `json:"image,omitempty"`
	Backend string    `json:"backend"`
	Rollout schema.ID `json:"rollout"`
	Part    string    `json:"part,omitempty"` // "verifier": the sandbox of a separate verifier
	State   string    `json:"state"`
	Made    time.Time `json:"made"`
	Until   time.Time `json:"until,omitzero"` // the end of a sandbox that is kept
	Workdir string    `json:"workdir"`
	// Env has variables for commands, in addition to the sandbox's.
	Env map[string]string `json:"env,omitempty"`
}

// States of a sandbox.
const (
	Running = "running" // its rollout runs
	Kept    = "kept"    // its rollout has ended
)

// Box gives streams to the box of a sandbox.
type Box interface {
	Stream() (net.Conn, error)
	Lost() <-chan struct{} // closed when the box is gone
}

// request is the first line of a connection.
type request struct {
	Op string `json:"op"`
	ID string `json:"id,omitempty"`
}

// answer is the line that answers a request.
type answer struct {
	Error     string    `json:"error,omitempty"`
	Sandboxes []Sandbox `json:"sandboxes,omitempty"`
}

const (
	opList   = "list"
	opOpen   = "open"
	opRemove = "remove"
)

// maxLine bounds a line of a connection, in bytes.
const maxLine = 4 << 20
