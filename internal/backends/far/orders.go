// Package far makes local sandboxes on another host over a byte stream. A backend
// brings the stream: one end is the standard input and output of Serve there, the
// other end is a Line here.
package far

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Mark begins all that turngate writes on the other side. What comes before it is of other
// programs, such as a login shell.
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
	Last   *last   `json:"last,omitempty"`
	Create *create `json:"create,omitempty"`
	Beside *beside `json:"beside,omitempty"`
}

// last makes the line outlive its connection. After the answer the connection carries messages
// of package line, and their bytes are the orders and answers from then on. Another connection
// carries them if it attaches to the name.
type last struct {
	Name    string        `json:"name"` // that of a line
	Beat    time.Duration `json:"beat"`
	Silence time.Duration `json:"silence"` // the line is over when nothing was heard for this time
}

func (l *last) check() error {
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(l.Name) {
		return fmt.Errorf("name: %q is not valid: want 32 hex digits", l.Name)
	}
	if l.Beat <= 0 || l.Beat > time.Minute || l.Silence < l.Beat || l.Silence > time.Hour {
		return fmt.Errorf("beat %s, silence %s: want a beat up to a minute, and a silence from that to an hour", l.Beat, l.Silence)
	}
	return nil
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

// beside has the fields of a sandboxes.Spec for a box that another container runs.
type beside struct {
	User    string            `json:"user,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Disk    int64             `json:"disk"`
	Ready   time.Duration     `json:"ready"`
	Life    time.Duration     `json:"life,omitempty"`
	Lost    time.Duration     `json:"lost,omitempty"`
}

// check returns an error if a value leads out of the folders of this host or of the
// sandbox: the worker may be hostile.
func (c *create) check() error {
	for field, name := range map[string]string{"owner": c.Owner, "rollout": string(c.Rollout), "part": c.Part} {
		if field == "part" && name == "" {
			continue
		}
		if err := checkName(field, name); err != nil {
			return err
		}
	}
	if c.Workdir != "" {
		if err := schema.CheckPath("workdir", c.Workdir); err != nil {
			return err
		}
	}
	for i, m := range c.Mounts {
		if err := schema.CheckPath("mounts.guest", m.Guest); err != nil {
			return err
		}
		for _, other := range c.Mounts[:i] { // a link in one could lead the other out of the sandbox
			if below(m.Guest, other.Guest) || below(other.Guest, m.Guest) {
				return fmt.Errorf("the mount %q is in %q or has it: want mounts apart from each other", m.Guest, other.Guest)
			}
		}
	}
	return nil
}

// below reports whether a clean path is dir or in it.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// checkName checks a part of the names of sandboxes, which are names of files.
func checkName(field, s string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`).MatchString(s) {
		return fmt.Errorf("%s: %q is not valid: want 1 to 80 characters of A-Z, a-z, 0-9, _ and -", field, schema.Clip(s, 100))
	}
	return nil
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

// Lost returns the reason for the end of a sandbox in an exit status of Serve: an error that
// wraps sandboxes.ErrLost; nil for a status with no such reason.
func Lost(status int) error {
	switch status {
	case exitMemory:
		return sandboxes.ErrMemory
	case exitKilled:
		return sandboxes.ErrKilled
	case exitLost:
		return sandboxes.ErrLost
	}
	return nil
}
