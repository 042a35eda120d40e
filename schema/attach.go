package schema

import (
	"cmp"
	"fmt"
)

// Process describes a process of a trainer. One process at a time answers the calls
// of a trainer's shard.
type Process struct {
	V        int    `json:"v"`
	Instance string `json:"instance"`        // random name of this run
	Owner    string `json:"owner,omitempty"` // random name in its state file, so that the next process with this file has it too; empty: no file
	Shard    string `json:"shard"`
	Name     string `json:"name,omitempty"`  // program, number of the process and host, for people
	Since    int64  `json:"since,omitempty"` // its start in Unix ms; of two with one owner, the later one has the calls
	Ended    bool   `json:"ended,omitempty"` // it has given its shard up
}

func (p *Process) check() error {
	err := cmp.Or(CheckToken("instance", p.Instance), CheckToken("shard", p.Shard), checkText("name", p.Name, 300), checkRange("since", p.Since, 0, maxBytes))
	if err == nil && p.Owner != "" {
		err = CheckToken("owner", p.Owner)
	}
	return err
}

// Attach asks for the calls of a shard. The process that has them asks again
// every 5 s, and with process.ended at its end.
type Attach struct {
	V       int     `json:"v"`
	Process Process `json:"process"`           // the one that asks
	Replace string  `json:"replace,omitempty"` // instance of the process that it replaces
}

func (a *Attach) check() error {
	if a.Replace != "" {
		if err := CheckToken("replace", a.Replace); err != nil {
			return err
		}
	}
	return of("process", a.Process.check())
}

// Gets reports whether the process gets the calls of its shard while another one, or
// itself, has them or has given them up. Of two processes with one owner, which have copies of a state file
// if both run, the one that started later gets them: they would take turns otherwise.
func (a *Attach) Gets(has *Process) bool {
	return has.Ended || has.Instance == a.Process.Instance || has.Instance == a.Replace || has.SameOwner(&a.Process) && has.before(&a.Process)
}

// SameOwner reports whether two processes have a state file with the same owner.
func (p *Process) SameOwner(q *Process) bool { return p.Owner != "" && p.Owner == q.Owner }

func (p *Process) before(q *Process) bool {
	return cmp.Or(cmp.Compare(p.Since, q.Since), cmp.Compare(p.Instance, q.Instance)) < 0
}

// Attached is a worker's answer to an Attach.
type Attached struct {
	V        int     `json:"v"`
	Error    string  `json:"error,omitempty"`     // reason why it is not known which process has the calls; empty: it is known
	Process  Process `json:"process,omitzero"`    // the one that has the calls now
	SilentMS int64   `json:"silent_ms,omitempty"` // since it asked, if it is another one
}

func (a *Attached) check() error {
	if err := cmp.Or(checkText("error", a.Error, maxText), checkRange("silent_ms", a.SilentMS, 0, maxBytes)); err != nil || a.Error != "" {
		return err
	}
	return of("process", a.Process.check())
}

// of names the field that an error is about.
func of(field string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}
