package subjects

import (
	"strings"

	"github.com/turngate/turngate/schema"
)

// Buckets of small values that are kept in memory, each a stream of its own.
const (
	StreamLeases  = "KV_lease"   // who is alive; what decides is read through its leader
	StreamWorkers = "KV_workers" // who is there, for people and for passing requests on
	StreamControl = "KV_control" // what trainers hold
)

// LeaseFilter, PresenceFilter and ControlFilter are the subjects of those
// streams.
const (
	LeaseFilter    = "$KV.lease.>"
	PresenceFilter = "$KV.workers.>"
	ControlFilter  = "$KV.control.>"
)

// Hold is where workers see which of a trainer's rollouts it holds.
func Hold(trainer string) string { return "$KV.control.hold." + trainer }

// HoldsFilter selects the holds of all trainers.
const HoldsFilter = "$KV.control.hold.*"

// Lease is where a worker instance shows that it is alive.
func Lease(worker, instance string) string { return "$KV.lease." + worker + "." + instance }

// LeasesOf selects the leases of all instances of a worker.
func LeasesOf(worker string) string { return "$KV.lease." + worker + ".*" }

// JanitorLease is held by the one worker that tidies up.
const JanitorLease = "$KV.lease.janitor"

// Presence is where a worker keeps its presence entry.
func Presence(worker string) string { return "$KV.workers." + worker }

// WorkerStatus is where a worker tells people how it is.
func WorkerStatus(worker string) string { return "worker." + worker + ".status" }

// WorkerControl is where a worker hears other workers and ops.
func WorkerControl(worker string) string { return "worker." + worker + ".control" }

// RolloutOf selects all that is kept of one rollout in StreamRollouts.
func RolloutOf(id schema.ID) string { return "rollout." + string(id) + ".*" }

// StateFilter and ResultFilter select the states and results of all rollouts.
const (
	StateFilter  = "rollout.*.state"
	ResultFilter = "rollout.*.result"
)

// RolloutID reads the rollout out of a subject of StreamRollouts.
func RolloutID(subject string) (schema.ID, bool) {
	t := strings.Split(subject, ".")
	if len(t) != 3 || t[0] != "rollout" {
		return "", false
	}
	id, err := schema.ParseID(t[1])
	return id, err == nil
}

// CancelGroup is the queue group in which workers hear cancels: one of them
// acts on each.
const CancelGroup = "workers"

// LaneOf is the priority of a request's subject: 0 is the most urgent.
func LaneOf(subject string) int {
	if t := strings.Split(subject, "."); len(t) == 4 && len(t[2]) == 2 {
		return int(t[2][1] - '0')
	}
	return DefaultLane
}

// DeadReason reads the reason out of a subject of StreamDead.
func DeadReason(subject string) string {
	if t := strings.Split(subject, "."); len(t) == 3 {
		return t[1]
	}
	return ""
}
