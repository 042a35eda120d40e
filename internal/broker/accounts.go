package broker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Names of accounts. Each trainer and each machine has an account of its own, see
// accountOfTrainer and accountOfMachine.
const (
	accountWorkers = "WORKERS" // has JetStream: all streams, all workers and admins
	accountOps     = "OPS"     // watchers
	accountSystem  = "SYS"     // the server's own
)

func accountOfTrainer(tid string) string { return "T_" + tid }

func accountOfMachine(machine string) string { return "M_" + machine }

// accountOf returns the account of a role.
func accountOf(role, name string) string {
	switch role {
	case RoleTrainer:
		return accountOfTrainer(name)
	case RoleMachine:
		return accountOfMachine(name)
	case RoleOps:
		return accountOps
	default:
		return accountWorkers
	}
}

// Limits of the account of a trainer, a machine or the watchers. Two connections and some
// ten subscriptions are usual for each process.
const (
	maxConnections   = 128
	maxSubscriptions = 1000 // of each connection
	// answerWithin is the time for which the server keeps the way back of a request
	// without an answer. Clients wait for a shorter time.
	answerWithin = "30s"
)

// access has the public keys of all clients that a server admits.
type access struct {
	admin, ops, system          string
	trainers, workers, machines map[string]string // by name
	leaves                      map[string]string // by site
	everybody, desk             string            // user for hosts without a credential, and user that answers them; empty: none may connect
	leftOut                     []error           // of clients that are not admitted
	// kinds limits all clients to this kind of connection, except leaves, which have
	// their own; empty: any.
	kinds string
}

// Kinds of connections in the configuration of nats-server.
const (
	kindStandard = "STANDARD"
	kindLeaf     = "LEAFNODE"
)

// config writes the accounts in the configuration language of nats-server. A
// server in this process and one with a file read the same text.
//
// Only the workers' account has JetStream. The server answers a request of
// another account on a subject of that account, so that a reply subject reaches
// no further than the account's imports.
func (a access) config() string {
	trainers := slices.Sorted(maps.Keys(a.trainers))
	var exports exportList
	var others strings.Builder
	for _, tid := range trainers {
		account := accountOfTrainer(tid)
		exports.add(account, trainerTrades(tid))
		writeAccount(&others, account, user(a.trainers[tid], trainerRights(tid).config(), a.kinds), trainerTrades(tid))
	}
	for _, machine := range slices.Sorted(maps.Keys(a.machines)) {
		account := accountOfMachine(machine)
		exports.add(account, machineTrades(machine))
		writeAccount(&others, account, user(a.machines[machine], machineRights(machine).config(), a.kinds), machineTrades(machine))
	}
	exports.add(accountOps, opsTrades(trainers))
	writeAccount(&others, accountOps, user(a.ops, opsRights(trainers).config(), a.kinds), opsTrades(trainers))

	var b strings.Builder
	fmt.Fprintf(&b, "accounts {\n  %s {\n    jetstream: enabled\n    users: [\n%s", accountWorkers, user(a.admin, "", a.kinds))
	b.WriteString(a.workerUsers())
	for _, site := range slices.Sorted(maps.Keys(a.leaves)) {
		b.WriteString(user(a.leaves[site], leafRights().config(), kindLeaf))
	}
	fmt.Fprintf(&b, "    ]\n    exports: [\n%s    ]\n  }\n%s", exports.config(), others.String()+a.enrollment())
	fmt.Fprintf(&b, "  %s { users: [\n%s  ] }\n}\nsystem_account: %s\n", accountSystem, user(a.system, "", a.kinds), accountSystem)
	return b.String()
}

func (a access) workerUsers() string {
	var b strings.Builder
	for _, wid := range slices.Sorted(maps.Keys(a.workers)) {
		b.WriteString(user(a.workers[wid], workerRights(wid).config(), a.kinds))
	}
	return b.String()
}

// user writes a user with a key. Without permissions it may do everything, without
// kinds it may connect in any way.
func user(key, permissions, kinds string) string {
	out := "      { nkey: " + key
	if permissions != "" {
		out += ", permissions: " + permissions
	}
	if kinds != "" {
		out += ", allowed_connection_types: [" + kinds + "]"
	}
	return out + " }\n"
}

func writeAccount(b *strings.Builder, name, users string, imports []trade) {
	fmt.Fprintf(b, "  %s {\n    limits { max_connections: %d, max_subscriptions: %d }\n    users: [\n%s    ]\n    imports: [\n", name, maxConnections, maxSubscriptions, users)
	for _, t := range imports {
		fmt.Fprintf(b, "      { %s: { account: %s, subject: \"%s\" } }\n", t.kind, accountWorkers, t.subject)
	}
	b.WriteString("    ]\n  }\n")
}

// exportList collects the exports of the workers' account, in order. Several
// accounts may import the same subject.
type exportList struct {
	order    []trade
	accounts map[trade][]string
}

func (e *exportList) add(account string, trades []trade) {
	if e.accounts == nil {
		e.accounts = map[trade][]string{}
	}
	for _, t := range trades {
		if e.accounts[t] == nil {
			e.order = append(e.order, t)
		}
		e.accounts[t] = append(e.accounts[t], account)
	}
}

func (e *exportList) config() string {
	var b strings.Builder
	for _, t := range e.order {
		answers := ""
		if t.many {
			answers = ", response: stream"
		}
		if t.kind == tradeService {
			answers += ", threshold: \"" + answerWithin + "\""
		}
		fmt.Fprintf(&b, "      { %s: \"%s\"%s, accounts: [%s] }\n", t.kind, t.subject, answers, strings.Join(e.accounts[t], ", "))
	}
	return b.String()
}
