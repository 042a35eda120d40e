package subjects

import (
	"strings"

	"github.com/turngate/turngate/schema"
)

// Buckets of small values that are kept in memory, each a stream of its own.
const (
	StreamLeases  = "KV_lease"   // leases of worker instances and of the janitor
	StreamWorkers = "KV_workers" // presence of workers, for people and for handing requests over
	StreamControl = "KV_control" // holds and processes of trainers
)

// LeaseFilter, PresenceFilter and ControlFilter are the subjects of
// StreamLeases, StreamWorkers and StreamControl.
const (
	LeaseFilter    = "$KV.lease.>"
	PresenceFilter = "$KV.workers.>"
	ControlFilter  = "$KV.control.>"
)

// Hold is the subject of a trainer's current hold in StreamControl.
func Hold(trainer string) string { return "$KV.control.hold." + trainer }

// Process is the subject in StreamControl of the process that answers a trainer's
// shard.
func Process(trainer, shard string) string { return "$KV.control.process." + trainer + "." + shard }

// ProcessesOf selects the processes of a trainer in StreamControl.
func ProcessesOf(trainer string) string { return Process(trainer, "*") }

// HoldsFilter selects the holds of all trainers in StreamControl.
const HoldsFilter = "$KV.control.hold.*"

// Lease is the subject of the lease of a worker instance.
func Lease(worker, instance string) string { return "$KV.lease." + worker + "." + instance }

// LeasesOf selects the leases of all instances of a worker.
func LeasesOf(worker string) string { return "$KV.lease." + worker + ".*" }

// JanitorLease is the subject of the lease of the janitor, the one worker that
// repairs lost rollouts and removes old ones.
const JanitorLease = "$KV.lease.janitor"

// Presence is the subject of the presence entry of a worker instance.
func Presence(worker, instance string) string { return "$KV.workers." + worker + "." + instance }

// PresencesOf selects the presence entries of all instances of a worker.
func PresencesOf(worker string) string { return "$KV.workers." + worker + ".*" }

// WorkerStatus is the subject on which a worker publishes its presence for ops.
func WorkerStatus(worker string) string { return "worker." + worker + ".status" }

// WorkerControl is the subject of commands to a worker, see schema.Control.
func WorkerControl(worker string) string { return "worker." + worker + ".control" }

// ShellDown is the subject of an operator's messages to a line to a worker.
func ShellDown(worker, line string) string { return "worker." + worker + ".shell.down." + line }

// ShellUp is the subject of a worker's messages to an operator's line.
func ShellUp(worker, line string) string { return "worker." + worker + ".shell.up." + line }

// ParseShellDown reads the line from a subject of ShellDown. ok is false if it is
// malformed.
func ParseShellDown(subject string) (line string, ok bool) {
	t := strings.Split(subject, ".")
	if len(t) != 5 || t[0] != "worker" || t[2] != "shell" || t[3] != "down" {
		return "", false
	}
	return t[4], schema.CheckToken("line", t[4]) == nil
}

// WorkerTrainers is the subject on which a worker tells all workers that a
// trainer's streams were made or changed.
const WorkerTrainers = "worker.trainers"

// CancelGroup is the queue group of the workers for messages from trainers, such
// as cancels: one worker handles each.
const CancelGroup = "workers"

// LaneOf is the priority of a request's subject: 0 is the most urgent.
func LaneOf(subject string) int {
	if t := strings.Split(subject, "."); len(t) == 4 && len(t[2]) == 2 {
		return int(t[2][1] - '0')
	}
	return DefaultLane
}

// DeadReason reads the reason from a subject of StreamDead.
func DeadReason(subject string) string {
	if t := strings.Split(subject, "."); len(t) == 3 {
		return t[1]
	}
	return ""
}
