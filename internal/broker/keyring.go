package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/schema"
)

// Keyring is a folder with the credentials of a server's clients: for each a file
// of mode 0600 with an nkey seed (.nk), or the public key alone (.pub) of a client
// that keeps its seed to itself. A server admits only the clients of its keyring.
// It reads the folder when it starts and when it is reloaded.
type Keyring struct{ dir string }

// system is the name of the server's own credential.
const system = "sys"

const (
	seedExt   = ".nk"
	publicExt = ".pub"
)

// OpenKeyring opens a keyring, and makes the folder if it does not exist.
func OpenKeyring(dir string) (*Keyring, error) {
	if err := owned.Folder(dir); err != nil {
		return nil, fmt.Errorf("the folder of credentials: %w", err)
	}
	return &Keyring{dir}, nil
}

// Dir returns the folder.
func (k *Keyring) Dir() string { return k.dir }

// AdminCreds returns the path of the credential for everything, such as deleting dead
// messages.
func (k *Keyring) AdminCreds() string { return k.file(RoleAdmin, seedExt) }

// OpsCreds returns the path of the credential for watchers.
func (k *Keyring) OpsCreds() string { return k.file(RoleOps, seedExt) }

// SystemCreds returns the path of the credential for the server itself, see
// ReloadServers.
func (k *Keyring) SystemCreds() string { return k.file(system, seedExt) }

// TrainerCreds returns the path of one trainer's credential.
func (k *Keyring) TrainerCreds(tid string) string { return k.file(RoleTrainer+"-"+tid, seedExt) }

// WorkerCreds returns the path of one worker's credential.
func (k *Keyring) WorkerCreds(wid string) string { return k.file(RoleWorker+"-"+wid, seedExt) }

// MachineCreds returns the path of one machine's credential.
func (k *Keyring) MachineCreds(machine string) string {
	return k.file(RoleMachine+"-"+machine, seedExt)
}

// RoleOf returns the role and the name of a client in the path of its credential;
// empty for any other path.
func RoleOf(path string) (role, name string) {
	base, ok := strings.CutSuffix(filepath.Base(path), seedExt)
	if !ok {
		return "", ""
	}
	if base == RoleAdmin || base == RoleOps {
		return base, base
	}
	role, name, _ = strings.Cut(base, "-")
	if CheckRole(role, name) != nil {
		return "", ""
	}
	return role, name
}

// CredsName returns the name of the file with the credential of a client, as RoleOf
// reads it.
func CredsName(role, name string) string {
	if role == RoleAdmin || role == RoleOps {
		return role + seedExt
	}
	return role + "-" + name + seedExt
}

// CheckRole checks the role of a client and its name.
func CheckRole(role, name string) error {
	switch role {
	case RoleTrainer:
		return schema.CheckTrainer(name)
	case RoleWorker, RoleMachine, RoleLeaf:
		return schema.CheckToken(role, name)
	case RoleOps, RoleAdmin:
		if name == role {
			return nil
		}
	}
	return fmt.Errorf("%q is not valid: want trainer:NAME, worker:NAME, machine:NAME, ops:ops or admin:admin", schema.Clip(role+":"+name, 80))
}

// WorkerOf returns the worker name in the path of a worker's credential; empty for
// any other path.
func WorkerOf(path string) string {
	if role, name := RoleOf(path); role == RoleWorker {
		return name
	}
	return ""
}

func (k *Keyring) file(name, ext string) string { return filepath.Join(k.dir, name+ext) }

// AddTrainer makes a credential for a trainer, unless it has one. With a public
// key the keyring keeps that alone.
func (k *Keyring) AddTrainer(tid, public string) error {
	if err := schema.CheckTrainer(tid); err != nil {
		return err
	}
	return k.add(RoleTrainer+"-"+tid, public)
}

// AddWorker is AddTrainer for a worker.
func (k *Keyring) AddWorker(wid, public string) error {
	if err := schema.CheckToken("worker", wid); err != nil {
		return err
	}
	return k.add(RoleWorker+"-"+wid, public)
}

// AddMachine is AddTrainer for a machine.
func (k *Keyring) AddMachine(machine, public string) error {
	if err := schema.CheckToken(RoleMachine, machine); err != nil {
		return err
	}
	return k.add(RoleMachine+"-"+machine, public)
}

// AddLeaf is AddTrainer for the server of a site.
func (k *Keyring) AddLeaf(site, public string) error {
	if err := schema.CheckToken("site", site); err != nil {
		return err
	}
	return k.add(RoleLeaf+"-"+site, public)
}

// errOtherKey occurs when a client is added that has another key already.
var errOtherKey = errors.New("has another key already")

func (k *Keyring) add(name, public string) error {
	if public == "" {
		if _, err := os.Stat(k.file(name, publicExt)); err == nil {
			return nil
		}
		_, err := loadOrMakeSeed(k.file(name, seedExt))
		return err
	}
	if err := k.checkPublic(name, public); err != nil {
		return err
	}
	if _, err := os.Stat(k.file(name, seedExt)); err == nil {
		return fmt.Errorf("%s: %w", name, errOtherKey)
	}
	there, err := loadOrMake(k.file(name, publicExt), func() ([]byte, error) { return []byte(public + "\n"), nil })
	if err != nil {
		return fmt.Errorf("public key of %s: %w", name, err)
	}
	if strings.TrimSpace(string(there)) != public {
		return fmt.Errorf("%s: %w", name, errOtherKey)
	}
	return nil
}

// checkPublic checks the public key of a client.
func (k *Keyring) checkPublic(name, public string) error {
	if !nkeys.IsValidPublicUserKey(public) {
		return fmt.Errorf("public key of %s: %q is not valid: want the public key of a user nkey, such as UDXU4RCS…", name, schema.Clip(public, 80))
	}
	everybody, err := enrollKey()
	if err != nil {
		return err
	}
	if public == everybody {
		return fmt.Errorf("public key of %s: %q is the key that all hosts have which enroll: want a key of its own", name, public)
	}
	if other := k.clientWith(public, name); other != "" {
		return fmt.Errorf("public key of %s: %q is the key of %s already: want a key of its own", name, public, other)
	}
	return nil
}

// clientWith returns the client other than name that has a public key; empty: none.
func (k *Keyring) clientWith(public, name string) string {
	clients := []string{RoleAdmin, RoleOps, system, desk}
	for _, kind := range []string{RoleTrainer, RoleWorker, RoleMachine, RoleLeaf} {
		names, err := k.names(kind)
		if err != nil {
			continue // the server names the folder that it cannot read
		}
		for _, n := range names {
			clients = append(clients, kind+"-"+n)
		}
	}
	for _, other := range clients {
		if key, err := k.public(other); err == nil && key == public && other != name {
			return other
		}
	}
	return ""
}

// RemoveTrainer deletes a trainer's credential. Errors wrap ErrNotFound.
func (k *Keyring) RemoveTrainer(tid string) error {
	if err := schema.CheckTrainer(tid); err != nil {
		return err
	}
	return k.remove(RoleTrainer + "-" + tid)
}

// RemoveWorker is RemoveTrainer for a worker.
func (k *Keyring) RemoveWorker(wid string) error {
	if err := schema.CheckToken("worker", wid); err != nil {
		return err
	}
	return k.remove(RoleWorker + "-" + wid)
}

// RemoveMachine is RemoveTrainer for a machine.
func (k *Keyring) RemoveMachine(machine string) error {
	if err := schema.CheckToken(RoleMachine, machine); err != nil {
		return err
	}
	return k.remove(RoleMachine + "-" + machine)
}

func (k *Keyring) remove(name string) error {
	found := false
	for _, ext := range []string{seedExt, publicExt} {
		err := os.Remove(k.file(name, ext))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the credential of %s: %w", name, err)
		}
		found = found || err == nil
	}
	if !found {
		return fmt.Errorf("credential of %s in %s: %w", name, k.dir, ErrNotFound)
	}
	return nil
}

// Trainers lists the names of the trainers, sorted.
func (k *Keyring) Trainers() ([]string, error) { return k.names(RoleTrainer) }

// Workers lists the names of the workers, sorted.
func (k *Keyring) Workers() ([]string, error) { return k.names(RoleWorker) }

// Machines lists the names of the machines, sorted.
func (k *Keyring) Machines() ([]string, error) { return k.names(RoleMachine) }

func (k *Keyring) names(kind string) ([]string, error) {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return nil, fmt.Errorf("list credentials: %w", err)
	}
	var out []string
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), kind+"-")
		ext := filepath.Ext(name)
		if ok && (ext == seedExt || ext == publicExt) {
			out = append(out, strings.TrimSuffix(name, ext))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// access reads the public keys of all clients. It makes the credentials of admin,
// ops and system if they are missing. A trainer, worker or machine with a file that cannot
// be used is in leftOut, so that one bad file does not stop the server. With enroll, hosts
// without a credential may ask to become machines.
func (k *Keyring) access(enroll bool) (access, error) {
	a := newAccess()
	for file, key := range map[string]*string{k.AdminCreds(): &a.admin, k.OpsCreds(): &a.ops, k.SystemCreds(): &a.system} {
		var err error
		if *key, err = loadOrMakeSeed(file); err != nil {
			return access{}, err
		}
	}
	for kind := range a.named() {
		if err := k.read(&a, kind); err != nil {
			return access{}, err
		}
	}
	if enroll {
		if err := k.openEnrollment(&a); err != nil {
			return access{}, err
		}
	}
	a.leaveOutShared(k.dir)
	return a, nil
}

// read adds the clients of a role to a.
func (k *Keyring) read(a *access, kind string) error {
	names, err := k.names(kind)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := CheckRole(kind, name) // the name becomes a part of the server's configuration
		key := ""
		if err == nil {
			key, err = k.public(kind + "-" + name)
		}
		if err != nil {
			a.leftOut = append(a.leftOut, fmt.Errorf("credentials in %s: %s %q: %w", k.dir, kind, name, err))
			continue
		}
		a.named()[kind][name] = key
	}
	return nil
}

func newAccess() access {
	return access{trainers: map[string]string{}, workers: map[string]string{}, machines: map[string]string{}, leaves: map[string]string{}}
}

// named has the keys of the clients with names, by their role.
func (a *access) named() map[string]map[string]string {
	return map[string]map[string]string{RoleTrainer: a.trainers, RoleWorker: a.workers, RoleMachine: a.machines, RoleLeaf: a.leaves}
}

// leaveOutShared leaves out the clients that share a key with another client: the server takes
// a key once, and to remove one of its names would not shut a client out.
func (a *access) leaveOutShared(dir string) {
	holders := map[string][]string{a.admin: {RoleAdmin}, a.ops: {RoleOps}, a.system: {system}}
	if everybody, err := enrollKey(); err == nil {
		holders[everybody] = []string{"all hosts that enroll"}
	}
	if a.desk != "" {
		holders[a.desk] = []string{desk}
	}
	each := func(do func(kind, name, key string)) {
		for kind, keys := range a.named() {
			for name, key := range keys {
				do(kind, name, key)
			}
		}
	}
	each(func(kind, name, key string) { holders[key] = append(holders[key], kind+" "+name) })
	each(func(kind, name, key string) {
		if all := holders[key]; len(all) > 1 {
			slices.Sort(all)
			a.leftOut = append(a.leftOut, fmt.Errorf("credentials in %s: %s %q: its key %s is that of several clients (%s): want one key for each", dir, kind, name, key, strings.Join(all, ", ")))
			delete(a.named()[kind], name)
		}
	})
}

// public reads the public key of a client.
func (k *Keyring) public(name string) (string, error) {
	seed, err := owned.Read(k.file(name, seedExt))
	if errors.Is(err, os.ErrNotExist) {
		data, err := owned.Read(k.file(name, publicExt))
		key := strings.TrimSpace(string(data))
		if err == nil && !nkeys.IsValidPublicUserKey(key) {
			err = errors.New("not the public key of a user")
		}
		if err != nil {
			return "", fmt.Errorf("public key of %s: %w", name, err)
		}
		return key, nil
	}
	if err != nil {
		return "", fmt.Errorf("NATS credential of %s: %w", name, err)
	}
	key, err := publicOf(seed)
	if err != nil {
		return "", fmt.Errorf("NATS credential %s: %w", k.file(name, seedExt), err)
	}
	return key, nil
}

// loadOrMakeSeed returns the public key of the seed in file. It creates an absent
// file with a new seed.
func loadOrMakeSeed(file string) (string, error) {
	seed, err := loadOrMake(file, func() ([]byte, error) {
		pair, err := nkeys.CreateUser()
		if err != nil {
			return nil, err
		}
		return pair.Seed()
	})
	if err != nil {
		return "", fmt.Errorf("NATS credential %s: %w", file, err)
	}
	key, err := publicOf(seed)
	if err != nil {
		return "", fmt.Errorf("NATS credential %s: %w", file, err)
	}
	return key, nil
}

func publicOf(seed []byte) (string, error) {
	pair, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

// loadOrMake reads a secret from a file, or creates the file. If several
// processes create it at once, all get the same secret.
func loadOrMake(file string, make func() ([]byte, error)) ([]byte, error) {
	data, err := owned.Read(file)
	if !errors.Is(err, os.ErrNotExist) {
		return data, err
	}
	if data, err = make(); err != nil {
		return nil, err
	}
	if err := owned.Create(file, data); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return owned.Read(file)
}
