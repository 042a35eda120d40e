package schema

import "math"

// Machine announces a machine that takes sandboxes, every 2 s.
type Machine struct {
	V        int    `json:"v"`
	Machine  string `json:"machine"`
	Instance string `json:"instance"` // of its process; a part of the subjects of its lines
	Epoch    int64  `json:"epoch"`    // of two instances the one with the larger epoch is valid
	Version  string `json:"version,omitempty"`
	Program  string `json:"program"`            // sha256 of its turngate, as hex digits; a worker needs the same
	Protocol int    `json:"protocol,omitempty"` // of the bytes in its lines; clients in other languages need the one that they know
	System   string `json:"system,omitempty"`   // such as linux/amd64
	Slots    int    `json:"slots"`              // most lines at once, without those to its desktop
	Lines    int    `json:"lines,omitempty"`    // of these, that are open
	Draining bool   `json:"draining,omitempty"` // takes no more lines
	Gone     bool   `json:"gone,omitempty"`     // the last message of this instance
	// Missing has the reason for each capability that the machine lacks, such as sandbox.
	Missing         map[string]string `json:"missing,omitempty"`
	CPUs            int               `json:"cpus,omitempty"`
	Load            float64           `json:"load,omitempty"` // processes that run or want to, mean of the last minute
	MemoryBytes     int64             `json:"memory_bytes,omitempty"`
	FreeMemoryBytes int64             `json:"free_memory_bytes,omitempty"`
	FreeDiskBytes   int64             `json:"free_disk_bytes,omitempty"` // where the machine keeps its files
}

// LineProtocol is the version of the bytes in the lines of a machine. docs/machine.md
// describes it.
const LineProtocol = 1

// Capabilities of a machine.
const (
	// CanSandbox: it makes sandboxes for workers.
	CanSandbox = "sandbox"
	// CanWorkspace: its owner gives a folder to people with the admin's credential, who run
	// commands there.
	CanWorkspace = "workspace"
	// CanConfine: commands in that folder run in a sandbox.
	CanConfine = "confinement"
	// CanDesktop: people with the admin's credential see its desktop.
	CanDesktop = "desktop"
	// CanInput: they also use the pointer and the keyboard of that desktop.
	CanInput = "input"
)

// Known returns a figure that a machine or a worker tells of itself; 0, which means that it is
// not known, in place of a number below 0 or of one that JSON does not have.
func Known(figure float64) float64 {
	if !(figure >= 0) || math.IsInf(figure, 0) {
		return 0
	}
	return figure
}

func (m *Machine) check() error {
	if err := CheckToken("machine", m.Machine); err != nil {
		return err
	}
	return CheckToken("instance", m.Instance)
}

// LineOpen is the body of the message that opens a line to a machine, or to a worker.
type LineOpen struct {
	V    int    `json:"v"`
	Want string `json:"want"`         // the capability that the line is for: sandbox, workspace or desktop of a machine, shell of a worker
	ID   ID     `json:"id,omitempty"` // rollout of a shell
	// Instance is the instance of the worker that has the rollout of a shell.
	Instance string `json:"instance,omitempty"`
	By       string `json:"by,omitempty"` // name of a shell's operator, for people; it is not checked
}

// CanShell is the capability of a worker that lets operators run commands in the sandboxes
// of its rollouts.
const CanShell = "shell"

func (o *LineOpen) check() error {
	switch o.Want {
	case CanSandbox, CanWorkspace, CanDesktop:
		return nil
	case CanShell:
		if _, err := ParseID(string(o.ID)); err != nil {
			return err
		}
		return CheckToken("instance", o.Instance)
	default:
		return invalid("want", o.Want, "want sandbox, workspace, desktop or shell")
	}
}

// LineEnd is the body of the last message of one side of a line, or of a refusal.
type LineEnd struct {
	V int `json:"v"`
	// Reason is the reason of a refusal or an abort; empty after a regular end.
	Reason string `json:"reason,omitempty"`
	Status int    `json:"status,omitempty"` // exit status of the machine's process
	Text   string `json:"text,omitempty"`   // for people
}

// Reasons of a LineEnd.
const (
	LineFenced      = "fenced"      // the message is for an earlier instance
	LineDraining    = "draining"    // the machine takes no more lines
	LineFull        = "full"        // all slots are taken
	LineUnsupported = "unsupported" // the machine lacks the capability
	LineUnknown     = "unknown"     // the line is not open, or has ended
	LineSilent      = "silent"      // the other side was silent for too long
	LineClosed      = "closed"      // the process of this side ends
)

func (e *LineEnd) check() error { return nil }
