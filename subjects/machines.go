package subjects

import (
	"strings"

	"github.com/turngate/turngate/schema"
)

// MachinePresence is the subject on which a machine announces itself.
func MachinePresence(machine string) string { return "machine." + machine + ".presence" }

// Enroll is the subject of requests of hosts that ask to become machines, in an account of
// its own.
const Enroll = "machine.enroll"

// AdminClient is the client of lines of people with the admin's credential. No worker has
// this name, since it is no token.
const AdminClient = "@admin"

// MachinesFilter selects the announcements of all machines.
const MachinesFilter = "machine.*.presence"

// MachineDown is the subject of messages from a client, such as a worker, to its line
// on an instance of a machine.
func MachineDown(machine, instance, client, line string) string {
	return "machine." + machine + ".down." + instance + "." + client + "." + line
}

// MachineDownOf selects the messages of all clients to a machine.
func MachineDownOf(machine string) string { return "machine." + machine + ".down.*.*.*" }

// MachineDownFrom selects the messages of one client to all machines.
func MachineDownFrom(client string) string { return "machine.*.down.*." + client + ".*" }

// MachineUp is the subject of messages from a machine to a client's line.
func MachineUp(machine, client, line string) string {
	return "machine." + machine + ".up." + client + "." + line
}

// MachineUpOf selects the messages of a machine to all clients.
func MachineUpOf(machine string) string { return "machine." + machine + ".up.*.*" }

// MachineUpTo selects the messages of all machines to a client.
func MachineUpTo(client string) string { return "machine.*.up." + client + ".*" }

// ParseMachineDown reads a subject of MachineDown. ok is false if it is malformed.
func ParseMachineDown(subject string) (instance, client, line string, ok bool) {
	t := strings.Split(subject, ".")
	if len(t) != 6 || t[0] != "machine" || t[2] != "down" {
		return "", "", "", false
	}
	for i, token := range t {
		if schema.CheckToken("token", token) != nil && (i != 4 || token != AdminClient) {
			return "", "", "", false
		}
	}
	return t[3], t[4], t[5], true
}

// ParseMachineUp reads a subject of MachineUp. ok is false if it is malformed.
func ParseMachineUp(subject string) (machine, line string, ok bool) {
	t := strings.Split(subject, ".")
	if len(t) != 5 || t[0] != "machine" || t[2] != "up" {
		return "", "", false
	}
	return t[1], t[4], schema.CheckToken("machine", t[1]) == nil && schema.CheckToken("line", t[4]) == nil
}

// ParseMachinePresence reads the machine from a subject of MachinePresence.
func ParseMachinePresence(subject string) (machine string, ok bool) {
	t := strings.Split(subject, ".")
	if len(t) != 3 || t[0] != "machine" || t[2] != "presence" {
		return "", false
	}
	return t[1], schema.CheckToken("machine", t[1]) == nil
}
