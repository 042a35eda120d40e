package broker

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nkeys"

	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/subjects"
)

// accountEnroll is the account of hosts that ask to become machines, and of the desk that
// answers them. It shares no subject with another account.
const accountEnroll = "ENROLL"

// Limits of accountEnroll, in which everybody may connect.
const (
	maxEnrollConnections   = 64
	maxEnrollSubscriptions = 8 // of each connection
	maxEnrollPayload       = 4096
)

// EnrollInbox is the inbox prefix of hosts that ask to become machines. They share it, so
// that answers must not tell whom they are for.
const EnrollInbox = "_INBOX.enroll"

// EnrollKey returns the key with which hosts without a credential connect. It is no secret:
// it only keeps programs that forgot their credential apart from hosts that enroll.
func EnrollKey() (nkeys.KeyPair, error) {
	seed := sha256.Sum256([]byte("turngate: hosts that enroll"))
	return nkeys.FromRawSeed(nkeys.PrefixByteUser, seed[:])
}

// enrollKey is the public key of EnrollKey.
func enrollKey() (string, error) {
	pair, err := EnrollKey()
	if err != nil {
		return "", err
	}
	return pair.PublicKey()
}

// desk is the name of the credential of the desk.
const desk = "desk"

// DeskCreds returns the path of the credential of the process that answers hosts which ask
// to become machines.
func (k *Keyring) DeskCreds() string { return k.file(desk, seedExt) }

// openEnrollment admits hosts without a credential, and the desk.
func (k *Keyring) openEnrollment(a *access) (err error) {
	if a.everybody, err = enrollKey(); err == nil {
		a.desk, err = loadOrMakeSeed(k.DeskCreds())
	}
	return err
}

// enrollment writes the account of hosts without a credential.
func (a access) enrollment() string {
	if a.desk == "" {
		return ""
	}
	host := rights{publish: []string{subjects.Enroll}, subscribe: []string{EnrollInbox + ".>"}}
	answers := rights{publish: host.subscribe, subscribe: host.publish}
	return fmt.Sprintf("  %s {\n    limits { max_connections: %d, max_subscriptions: %d, max_payload: %d }\n    users: [\n%s%s    ]\n  }\n",
		accountEnroll, maxEnrollConnections, maxEnrollSubscriptions, maxEnrollPayload, user(a.everybody, host.config(), a.kinds), user(a.desk, answers.config(), a.kinds))
}

// MachineKey returns the public key of a machine. Errors wrap ErrNotFound.
func (k *Keyring) MachineKey(machine string) (string, error) {
	if err := CheckRole(RoleMachine, machine); err != nil {
		return "", err
	}
	key, err := k.public(RoleMachine + "-" + machine)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("machine %s in %s: %w", machine, k.dir, ErrNotFound)
	}
	return key, err
}

// ReplaceMachine gives a machine another key, of which the keyring has the public part
// alone. The earlier one is no longer admitted.
func (k *Keyring) ReplaceMachine(machine, public string) error {
	if err := CheckRole(RoleMachine, machine); err != nil {
		return err
	}
	name := RoleMachine + "-" + machine
	if err := k.checkPublic(name, public); err != nil {
		return err
	}
	if err := owned.Replace(k.file(name, publicExt), []byte(public+"\n")); err != nil {
		return fmt.Errorf("public key of %s: %w", name, err)
	}
	if err := os.Remove(k.file(name, seedExt)); err != nil && !errors.Is(err, os.ErrNotExist) { // the seed counts while it exists
		return fmt.Errorf("remove the earlier key of %s: %w", name, err)
	}
	return nil
}
