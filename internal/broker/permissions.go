package broker

import (
	"slices"
	"strings"

	"github.com/turngate/turngate/subjects"
)

// Roles of clients.
const (
	RoleTrainer = "trainer"
	RoleWorker  = "worker"
	RoleMachine = "machine"
	RoleLeaf    = "leaf"  // the server of a site, with the workers behind it
	RoleOps     = "ops"   // watchers, which also run commands in sandboxes of workers that allow it
	RoleAdmin   = "admin" // has all rights in the workers' account
)

// userInfo is the subject on which the server describes the client that asks. It is
// a service of every account.
const userInfo = "$SYS.REQ.USER.INFO"

// InboxFor returns the inbox prefix of a role's connection. Permissions allow no
// other prefix, so that no client can read the replies to another.
func InboxFor(role, name string) string { return "_INBOX." + role + "." + name }

// rights are the subjects of one role.
type rights struct {
	publish, subscribe []string
	// neverPublish and neverSubscribe are taken out of these.
	neverPublish, neverSubscribe []string
	// answers allows one reply to each message that arrives with a reply subject.
	answers bool
}

// tradeKind is the direction of messages between the workers' account and another
// account.
type tradeKind string

const (
	tradeService tradeKind = "service" // from the other account to the workers', with the answers
	tradeStream  tradeKind = "stream"  // from the workers' account to the other
)

// trade is a subject that the workers' account shares with another account.
type trade struct {
	kind    tradeKind
	subject string
	many    bool // a service with more than one answer to a request
}

// trainerTrades lists everything that passes between a trainer and the workers.
// Frames of answers are a service without replies, since the server counts a
// stream of answers to one request against a mapping that expires.
func trainerTrades(tid string) []trade {
	out := []trade{
		{kind: tradeStream, subject: subjects.CallsOf(tid, "")},
		{kind: tradeStream, subject: subjects.ToolsOf(tid, "")},
		{kind: tradeStream, subject: subjects.VerificationsOf(tid, "")},
		{kind: tradeStream, subject: subjects.TrainerResults(tid)},
		{kind: tradeStream, subject: subjects.TrainerEvents(tid)},
		{kind: tradeService, subject: subjects.Requests + ".*." + tid},
		{kind: tradeService, subject: subjects.TrainerCancel(tid)},
		{kind: tradeService, subject: subjects.TrainerHold(tid)},
		{kind: tradeService, subject: subjects.TrainerFleet(tid)},
		{kind: tradeService, subject: subjects.TrainerOpen(tid)},
		{kind: tradeService, subject: subjects.TrainerAttach(tid)},
		{kind: tradeService, subject: subjects.GateFrames(tid)},
		{kind: tradeService, subject: "$O." + subjects.TasksBucket(tid) + ".>"},
		{kind: tradeService, subject: "$JS.API.INFO"},
	}
	for _, stream := range subjects.StreamsOf(tid) {
		out = append(out, trade{kind: tradeService, subject: "$JS.API.STREAM.INFO." + stream}, trade{kind: tradeService, subject: "$JS.API.STREAM.MSG.GET." + stream})
	}
	return out
}

// trainerRights let a trainer act only as itself: submit and cancel its own
// rollouts, receive and answer its own calls, store bundles, read its own results
// and artifacts. In its own account it hears the frames of its other processes.
func trainerRights(tid string) rights {
	r := rightsOf(trainerTrades(tid), InboxFor(RoleTrainer, tid))
	r.publish = append(r.publish, InboxFor(RoleTrainer, tid)+".>") // to other processes of this trainer, in its own account
	r.subscribe = append(r.subscribe, subjects.GateFrames(tid))
	return r
}

// machineTrades lists everything that passes between a machine and the workers.
func machineTrades(machine string) []trade {
	return []trade{
		{kind: tradeStream, subject: subjects.MachineDownOf(machine)},
		{kind: tradeService, subject: subjects.MachineUpOf(machine)},
		{kind: tradeService, subject: subjects.MachinePresence(machine)},
	}
}

// machineRights let a machine announce itself and serve its own lines. It hears other
// instances of itself in its own account.
func machineRights(machine string) rights {
	r := rightsOf(machineTrades(machine), InboxFor(RoleMachine, machine))
	r.subscribe = append(r.subscribe, subjects.MachinePresence(machine))
	return r
}

// opsTrades let watchers read about rollouts and workers, and run commands in the
// sandboxes of workers that allow it. They change nothing else. A consumer would publish
// in the workers' account, so events are read by direct gets.
func opsTrades(trainers []string) []trade {
	out := []trade{
		{kind: tradeStream, subject: "rollout.*.events.>"},
		{kind: tradeStream, subject: "rollout.*.live.>"},
		{kind: tradeStream, subject: subjects.WorkerStatus("*")},
		{kind: tradeStream, subject: subjects.TrainerResults("*")},
		{kind: tradeStream, subject: subjects.ShellUp("*", "*")},
		{kind: tradeService, subject: subjects.ShellDown("*", "*")},
		{kind: tradeService, subject: directGet(subjects.StreamEvents), many: true},
		{kind: tradeService, subject: directGet(subjects.StreamWorkers), many: true},
		{kind: tradeService, subject: "$JS.API.INFO"},
		{kind: tradeService, subject: "$JS.API.STREAM.NAMES"},
		{kind: tradeService, subject: "$JS.API.STREAM.INFO.*"},
		{kind: tradeService, subject: "$JS.API.CONSUMER.LIST.*"},
		{kind: tradeService, subject: "$JS.API.STREAM.MSG.GET." + subjects.StreamDead},
	}
	streams := []string{subjects.StreamPlain, subjects.StreamControl}
	for _, tid := range trainers {
		streams = append(streams, subjects.Records(tid), subjects.Queue(tid)) // the message of a request has its age
	}
	for _, stream := range streams {
		out = append(out, trade{kind: tradeService, subject: "$JS.API.STREAM.MSG.GET." + stream})
	}
	return out
}

func opsRights(trainers []string) rights {
	return rightsOf(opsTrades(trainers), InboxFor(RoleOps, RoleOps))
}

func rightsOf(trades []trade, inbox string) rights {
	r := rights{publish: []string{userInfo}, subscribe: []string{inbox + ".>"}}
	for _, t := range trades {
		if t.kind == tradeStream {
			r.subscribe = append(r.subscribe, t.subject)
		} else {
			r.publish = append(r.publish, t.subject)
		}
	}
	return r
}

// workerRights bind a worker to its name: it receives no command to another worker
// and no frame of another's call, and cannot itself publish another's lease or
// presence.
func workerRights(wid string) rights {
	r := rights{
		answers: true,
		publish: []string{
			"rollout.*.llm.>", "rollout.*.tool.>", "rollout.*.verify.>", "rollout.*.events.*", "rollout.*.live.*", "record.>",
			subjects.Requests, subjects.Requests + ".*.*", subjects.ParkedFilter("*"),
			subjects.TrainerResults("*"), subjects.TrainerEvents("*"), subjects.DeadFilter,
			subjects.WorkerStatus(wid), subjects.WorkerControl("*"), subjects.WorkerTrainers, subjects.MachineDownFrom(wid), subjects.ShellUp(wid, "*"),
			subjects.LeasesOf(wid), subjects.JanitorLease, subjects.PresencesOf(wid), subjects.HoldsFilter, subjects.Process("*", "*"), "$O.>",
			userInfo, "$JS.ACK.>", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", directGet(subjects.StreamWorkers), directGet(subjects.StreamWorkers) + ".>",
		},
		subscribe: []string{
			"_INBOX.gate.*." + wid + ".>", InboxFor(RoleWorker, wid) + ".>", subjects.WorkerControl(wid), subjects.WorkerTrainers, subjects.MachinesFilter, subjects.MachineUpTo(wid), subjects.ShellDown(wid, "*"),
			subjects.CancelFilter, subjects.HoldFilter, subjects.FleetFilter, subjects.OpenFilter, subjects.AttachFilter, subjects.HoldsFilter,
		},
	}
	for _, verb := range []string{"CREATE", "UPDATE", "INFO", "PURGE", "MSG.GET", "MSG.DELETE"} {
		r.publish = append(r.publish, "$JS.API.STREAM."+verb+".*")
	}
	for _, verb := range []string{"CREATE", "DURABLE.CREATE", "INFO", "LIST", "DELETE", "MSG.NEXT"} {
		r.publish = append(r.publish, "$JS.API.CONSUMER."+verb+".>")
	}
	return r
}

// leafRights let the server of a site act for workers of any name: a site adds and
// removes its own. The admin's lines to machines have the place of a worker's.
func leafRights() rights {
	r := workerRights("*")
	// The server tells a leaf node of the subjects for answers to other accounts only with
	// this right. It lets a leaf node publish there without it.
	r.publish = append(r.publish, "_R_.>")
	r.neverPublish = []string{subjects.MachineDownFrom(subjects.AdminClient)}
	r.neverSubscribe = []string{subjects.MachineUpTo(subjects.AdminClient)}
	return r
}

func directGet(stream string) string { return "$JS.API.DIRECT.GET." + stream }

// config writes the rights as the permissions of a user in the configuration of
// nats-server.
func (r rights) config() string {
	out := "publish: " + allowed(r.publish, r.neverPublish) + ", subscribe: " + allowed(r.subscribe, r.neverSubscribe)
	if r.answers {
		out += `, allow_responses: { max: 1, expires: "1m" }`
	}
	return "{ " + out + " }"
}

func allowed(list, never []string) string {
	if len(never) == 0 {
		return "{ allow: " + quoted(list) + " }"
	}
	return "{ allow: " + quoted(list) + ", deny: " + quoted(never) + " }"
}

func quoted(list []string) string {
	list = slices.Clone(list)
	slices.Sort(list)
	for i, s := range list {
		list[i] = `"` + s + `"`
	}
	return "[" + strings.Join(slices.Compact(list), ", ") + "]"
}
