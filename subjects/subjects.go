// Package subjects holds every subject, stream, bucket and header name of the
// protocol, as constants, pure functions and parsers. No other package spells
// them out.
package subjects

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Streams that all trainers share.
const (
	StreamPlain  = "ROLLOUT_REQ" // work queue of the plain lane
	StreamEvents = "EVENTS"      // events, for watchers
	StreamDead   = "DEAD"        // messages that could not be read
)

// Requests is the plain lane. It has the priority of lane p2, and its requests
// name their trainer only in their id. Trainers have no right to publish on it.
const Requests = "rollout.requests"

// Lanes are the priorities of requests, most urgent first.
const Lanes = 4

// DefaultLane is the lane of a request without a lane.
const DefaultLane = 2

// Request is the subject on which a trainer publishes a request of a lane (0 is
// the most urgent).
func Request(lane int, trainer string) string {
	return Requests + ".p" + strconv.Itoa(lane) + "." + trainer
}

// ParseRequest reads the trainer out of a request's subject; empty for the
// plain lane.
func ParseRequest(subject string) (trainer string, ok bool) {
	if subject == Requests {
		return "", true
	}
	t := strings.Split(subject, ".")
	if len(t) != 4 || t[0] != "rollout" || t[1] != "requests" || len(t[2]) != 2 || t[2][0] != 'p' || t[2][1] < '0' || t[2][1] >= '0'+Lanes {
		return "", false
	}
	return t[3], schema.CheckTrainer(t[3]) == nil
}

// Event is the subject on which a worker publishes an event of a rollout.
func Event(id schema.ID, t schema.EventType) string {
	return "rollout." + string(id) + ".events." + string(t)
}

// EventFilter is the subject of StreamEvents.
const EventFilter = "rollout.*.events.*"

// EventsOf selects the events of one rollout, or of all when id is empty.
func EventsOf(id schema.ID) string {
	if id == "" {
		return EventFilter
	}
	return "rollout." + string(id) + ".events.*"
}

// Live is the subject on which a worker publishes token deltas for taps.
func Live(id schema.ID, attempt int) string {
	return "rollout." + string(id) + ".live." + strconv.Itoa(attempt)
}

// LiveOf selects the live deltas of all attempts of a rollout.
func LiveOf(id schema.ID) string { return "rollout." + string(id) + ".live.*" }

// Call is the subject on which a worker asks a trainer to answer a model call.
func Call(k schema.Key, shard string) string { return ofKey(k, ".llm.", shard) }

func ofKey(k schema.Key, kind, shard string) string {
	var room [128]byte
	b := append(append(append(room[:0], "rollout."...), k.Rollout...), kind...)
	b = append(append(append(b, k.Rollout.Trainer()...), '.'), shard...)
	b = strconv.AppendInt(append(b, '.'), int64(k.Attempt), 10)
	b = strconv.AppendInt(append(b, '.'), int64(k.Call), 10)
	return string(b)
}

// Tool is the subject on which a worker asks a trainer to run a tool.
func Tool(k schema.Key, shard string) string { return ofKey(k, ".tool.", shard) }

// ToolsOf selects the tool calls of one shard of a trainer, or of all its shards
// if shard is empty.
func ToolsOf(trainer, shard string) string {
	if shard == "" {
		return "rollout.*.tool." + trainer + ".>"
	}
	return "rollout.*.tool." + trainer + "." + shard + ".*.*"
}

// ParseTool is ParseCall for tool calls.
func ParseTool(subject string) (k schema.Key, shard string, ok bool) { return parse(subject, "tool") }

// Verification is the subject on which a worker asks a trainer to verify.
func Verification(k schema.Key, shard string) string { return ofKey(k, ".verify.", shard) }

// VerificationsOf selects the verifications of one shard of a trainer, or of all
// its shards if shard is empty.
func VerificationsOf(trainer, shard string) string {
	if shard == "" {
		return "rollout.*.verify." + trainer + ".>"
	}
	return "rollout.*.verify." + trainer + "." + shard + ".*.*"
}

// ParseVerification is ParseCall for verifications.
func ParseVerification(subject string) (k schema.Key, shard string, ok bool) {
	return parse(subject, "verify")
}

// CallsOf selects the model calls of one shard of a trainer, or of all its
// shards if shard is empty.
func CallsOf(trainer, shard string) string {
	if shard == "" {
		return "rollout.*.llm." + trainer + ".>"
	}
	return "rollout.*.llm." + trainer + "." + shard + ".*.*"
}

// CallsOfRollout selects the model calls of one rollout.
func CallsOfRollout(id schema.ID) string {
	return "rollout." + string(id) + ".llm." + id.Trainer() + ".>"
}

// ParseCall reads a call's key and shard from its subject. ok is false if the
// subject is malformed or the rollout belongs to another trainer than the
// subject names.
func ParseCall(subject string) (k schema.Key, shard string, ok bool) { return parse(subject, "llm") }

func parse(subject, kind string) (k schema.Key, shard string, ok bool) {
	var t [7]string
	for i := range t[:6] {
		var more bool
		if t[i], subject, more = strings.Cut(subject, "."); !more {
			return k, "", false
		}
	}
	t[6] = subject
	if t[0] != "rollout" || t[2] != kind {
		return k, "", false
	}
	id, err := schema.ParseID(t[1])
	if err != nil || id.Trainer() != t[3] || schema.CheckToken("shard", t[4]) != nil {
		return k, "", false
	}
	attempt, err := schema.ParseCount("attempt", t[5])
	if err != nil {
		return k, "", false
	}
	call, err := schema.ParseCount("call", t[6])
	if err != nil {
		return k, "", false
	}
	return schema.Key{Rollout: id, Attempt: attempt, Call: call}, t[4], true
}

// GateInbox is the reply subject on which a worker instance receives the frames
// of one call. token is random.
func GateInbox(trainer, worker, instance string, token [16]byte) string {
	var written [2 * len(token)]byte
	hex.Encode(written[:], token[:])
	return gateInboxPrefix + trainer + "." + worker + "." + instance + "." + string(written[:])
}

const gateInboxPrefix = "_INBOX.gate."

// GateInboxes selects all inboxes of one worker instance.
func GateInboxes(worker, instance string) string {
	return gateInboxPrefix + "*." + worker + "." + instance + ".*"
}

// GateInboxesOf selects the inboxes of one worker for the frames of one trainer.
func GateInboxesOf(trainer, worker string) string {
	return gateInboxPrefix + trainer + "." + worker + ".>"
}

// GateWorker reads the worker out of the subject of a gate inbox; empty for another subject.
func GateWorker(subject string) string {
	t := strings.Split(subject, ".")
	if len(t) != 6 || !strings.HasPrefix(subject, gateInboxPrefix) || schema.CheckToken("worker", t[3]) != nil {
		return ""
	}
	return t[3]
}

// GateFrames selects the frames of a trainer.
func GateFrames(trainer string) string { return gateInboxPrefix + trainer + ".>" }

// IsGateInbox reports whether a trainer may publish frames on subject. Trainers
// check the reply subject of each call with it, so that a forged call cannot
// direct their frames to another subject.
func IsGateInbox(subject, trainer string) bool {
	rest, ok := strings.CutPrefix(subject, gateInboxPrefix+trainer+".")
	return ok && strings.Count(rest, ".") == 2 && !strings.ContainsAny(rest, "*> ")
}

// InboxToken returns the last token of an inbox.
func InboxToken(subject string) string {
	return subject[strings.LastIndexByte(subject, '.')+1:]
}

// TrainerResults is the subject of hints that a result was committed.
func TrainerResults(trainer string) string { return "trainer." + trainer + ".results" }

// TrainerCancel is the subject on which a trainer asks to end its own rollouts.
func TrainerCancel(trainer string) string { return "trainer." + trainer + ".cancel" }

// CancelFilter selects the cancels of all trainers.
const CancelFilter = "trainer.*.cancel"

// ParseTrainerCancel reads the trainer out of a cancel's subject.
func ParseTrainerCancel(subject string) (trainer string, ok bool) {
	return parseTrainer(subject, "cancel")
}

// TrainerEvents is the subject on which workers send a trainer the phase and
// wait events of its rollouts.
func TrainerEvents(trainer string) string { return "trainer." + trainer + ".events" }

// TrainerHold is the subject on which a trainer publishes its hold.
func TrainerHold(trainer string) string { return "trainer." + trainer + ".hold" }

// TrainerFleet is the subject on which a trainer asks for the live workers.
func TrainerFleet(trainer string) string { return "trainer." + trainer + ".fleet" }

// TrainerOpen is the subject on which a trainer asks a worker to make its
// streams.
func TrainerOpen(trainer string) string { return "trainer." + trainer + ".open" }

// TrainerAttach is the subject on which a process of a trainer asks a worker for the
// calls of a shard.
func TrainerAttach(trainer string) string { return "trainer." + trainer + ".attach" }

// AttachFilter selects the requests of all trainers for their calls.
const AttachFilter = "trainer.*.attach"

// ParseTrainerAttach reads the trainer out of a subject of AttachFilter.
func ParseTrainerAttach(subject string) (trainer string, ok bool) {
	return parseTrainer(subject, "attach")
}

// ShardInbox is the subject on which the process that has a shard of a trainer hears
// others that ask for it.
func ShardInbox(trainer, shard string) string {
	return "_INBOX.trainer." + trainer + ".shard." + shard
}

// ProcessInbox is the subject on which a process of a trainer hears other processes
// of that trainer.
func ProcessInbox(trainer, instance string) string {
	return "_INBOX.trainer." + trainer + ".process." + instance
}

// OpenFilter selects the requests of all trainers for their streams.
const OpenFilter = "trainer.*.open"

// ParseTrainerOpen reads the trainer out of a subject of OpenFilter.
func ParseTrainerOpen(subject string) (trainer string, ok bool) { return parseTrainer(subject, "open") }

// FleetFilter selects the fleet requests of all trainers.
const FleetFilter = "trainer.*.fleet"

// HoldFilter selects the holds that all trainers publish.
const HoldFilter = "trainer.*.hold"

// ParseTrainerHold reads the trainer out of a hold's subject.
func ParseTrainerHold(subject string) (trainer string, ok bool) {
	return parseTrainer(subject, "hold")
}

func parseTrainer(subject, kind string) (trainer string, ok bool) {
	t := strings.Split(subject, ".")
	if len(t) != 3 || t[0] != "trainer" || t[2] != kind {
		return "", false
	}
	return t[1], schema.CheckTrainer(t[1]) == nil
}

// Dead is the subject in StreamDead of the unreadable messages of a stream, which one
// trainer has, or the plain lane.
func Dead(reason, stream string) string { return "dead." + reason + "." + stream }

// DeadFilter is the subject of StreamDead.
const DeadFilter = "dead.*.*"
