// Package subjects holds every subject, stream, bucket and header name of the
// protocol as pure functions, with parsers back. Nothing else spells them.
package subjects

import (
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Streams and buckets.
const (
	StreamRequests = "ROLLOUT_REQ" // work queue of requests
	StreamRollouts = "ROLLOUT"     // last message per subject: request copy, state, result
	StreamEvents   = "EVENTS"      // events, for people
	StreamDead     = "DEAD"        // messages that could not be read
)

// Requests is the plain lane, which is the same as lane p2 without a trainer.
const Requests = "rollout.requests"

// Lanes are the priorities of requests, most urgent first.
const Lanes = 4

// DefaultLane is the lane of a request that names none.
const DefaultLane = 2

// Request is where a trainer publishes a request of a lane (0 is the most
// urgent).
func Request(lane int, trainer string) string {
	return Requests + ".p" + strconv.Itoa(lane) + "." + trainer
}

// RequestFilters are the subjects of StreamRequests. They are literal lanes,
// since a wildcard would overlap the other streams.
func RequestFilters() []string {
	out := []string{Requests}
	for lane := range Lanes {
		out = append(out, Requests+".p"+strconv.Itoa(lane)+".*")
	}
	return out
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

// RequestCopy is where a worker keeps the request that it claimed.
func RequestCopy(id schema.ID) string { return "rollout." + string(id) + ".request" }

// State is where the state record of a rollout lives.
func State(id schema.ID) string { return "rollout." + string(id) + ".state" }

// Result is where the one result of a rollout lives.
func Result(id schema.ID) string { return "rollout." + string(id) + ".result" }

// RolloutFilters are the subjects of StreamRollouts.
func RolloutFilters() []string {
	return []string{"rollout.*.request", "rollout.*.state", "rollout.*.result"}
}

// Event is where a worker publishes an event of a rollout.
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

// Live is where a worker publishes token deltas for people who watch.
func Live(id schema.ID, attempt int) string {
	return "rollout." + string(id) + ".live." + strconv.Itoa(attempt)
}

// Call is where a worker asks a trainer for the answer to a model call.
func Call(k schema.Key, shard string) string { return ofKey(k, ".llm.", shard) }

func ofKey(k schema.Key, kind, shard string) string {
	var room [128]byte
	b := append(append(append(room[:0], "rollout."...), k.Rollout...), kind...)
	b = append(append(append(b, k.Rollout.Trainer()...), '.'), shard...)
	b = strconv.AppendInt(append(b, '.'), int64(k.Attempt), 10)
	b = strconv.AppendInt(append(b, '.'), int64(k.Call), 10)
	return string(b)
}

// Tool is where one tool call of a rollout is asked.
func Tool(k schema.Key, shard string) string { return ofKey(k, ".tool.", shard) }

// ToolsOf selects the tool calls of one trainer; of one shard unless shard is
// empty.
func ToolsOf(trainer, shard string) string {
	if shard == "" {
		return "rollout.*.tool." + trainer + ".>"
	}
	return "rollout.*.tool." + trainer + "." + shard + ".*.*"
}

// ParseTool is ParseCall for tool calls.
func ParseTool(subject string) (k schema.Key, shard string, ok bool) { return parse(subject, "tool") }

// CallsOf selects the calls of one trainer; of one shard unless shard is
// empty.
func CallsOf(trainer, shard string) string {
	if shard == "" {
		return "rollout.*.llm." + trainer + ".>"
	}
	return "rollout.*.llm." + trainer + "." + shard + ".*.*"
}

// ParseCall reads a call's key and shard out of its subject, and checks that
// the rollout is bound to the trainer that the subject names.
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

// GateInbox is where a worker instance hears the frames of one call. token is
// random.
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

// IsGateInbox reports whether subject is an inbox that a trainer of this name
// may answer to. A trainer checks it, so that nobody can aim its replies
// elsewhere.
func IsGateInbox(subject, trainer string) bool {
	rest, ok := strings.CutPrefix(subject, gateInboxPrefix+trainer+".")
	return ok && strings.Count(rest, ".") == 2 && !strings.ContainsAny(rest, "*> ")
}

// InboxToken returns the last token of an inbox.
func InboxToken(subject string) string {
	return subject[strings.LastIndexByte(subject, '.')+1:]
}

// TrainerResults is where workers hint that a result was committed.
func TrainerResults(trainer string) string { return "trainer." + trainer + ".results" }

// TrainerCancel is where a trainer asks to end rollouts of its own.
func TrainerCancel(trainer string) string { return "trainer." + trainer + ".cancel" }

// CancelFilter is what workers hear of all trainers' cancels.
const CancelFilter = "trainer.*.cancel"

// ParseTrainerCancel reads the trainer out of a cancel's subject.
func ParseTrainerCancel(subject string) (trainer string, ok bool) {
	return parseTrainer(subject, "cancel")
}

// TrainerHold is where a trainer says which of its rollouts wait.
func TrainerHold(trainer string) string { return "trainer." + trainer + ".hold" }

// HoldFilter is what workers hear of all trainers' holds.
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

// Dead is where a message that could not be read is kept.
func Dead(reason, id string) string { return "dead." + reason + "." + id }

// DeadFilter is the subject of StreamDead.
const DeadFilter = "dead.*.*"

// ConsumerOf is the durable consumer of StreamRequests for a filter of
// RequestFilters.
func ConsumerOf(filter string) string {
	if filter == Requests {
		return "workers"
	}
	return "workers-" + strings.Split(filter, ".")[2]
}
