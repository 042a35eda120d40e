package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/machines"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

// access is a kind of client that a server's keyring names.
type access struct {
	kind   string
	check  func(name string) error
	add    func(keys *broker.Keyring, name, public string) error
	remove func(keys *broker.Keyring, name string) error
}

func trainerAccess() access {
	return access{"trainer", schema.CheckTrainer, (*broker.Keyring).AddTrainer, (*broker.Keyring).RemoveTrainer}
}

func workerAccess() access {
	return access{"worker", func(s string) error { return schema.CheckToken("worker", s) }, (*broker.Keyring).AddWorker, (*broker.Keyring).RemoveWorker}
}

func checkWorkerName(name string) error {
	if name == "" {
		return nil
	}
	return workerAccess().check(name)
}

// accessCommand adds a client to a server, or removes it, while the server runs.
func accessCommand(of func() access, add bool) *cobra.Command {
	c := &accessChange{access: of()}
	cmd := &cobra.Command{
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%d names are not valid: want the name of one %s", len(args), c.kind)
			}
			return usageOf(c.check(args[0]))
		},
		PreRunE: func(cmd *cobra.Command, _ []string) error {
			if c.deleteData && c.nats.url == "" {
				return usage("--delete-data: want --nats, the server that has the data")
			}
			return usageOf(c.ofContext(cmd), c.set.check())
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if c.ring, err = broker.OpenKeyring(c.keys); err != nil {
				return err
			}
			if add {
				return c.admit(cmd, args[0])
			}
			return c.shutOut(cmd, args[0])
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&c.nats.url, "nats", defaultURL, "URL of the running NATS server, or of one server of its cluster; empty: no server runs")
	c.nats.addContext(fl)
	fl.StringVar(&c.keys, "keys", filepath.Join(stateDir(), "creds"), "the server's folder of credentials: creds in its --state, or its --creds-dir")
	if !add {
		cmd.Use, cmd.Short = "rm NAME", "Shut out a "+c.kind+" at once"
		if c.kind == "machine" {
			cmd.Use = "revoke NAME"
		}
		cmd.Long = "Shut out a " + c.kind + ": delete its credential, and close its connections to a running server. If no server confirms this, the command fails; `--nats \"\"` says that none runs."
		if c.kind == "trainer" {
			fl.BoolVar(&c.deleteData, "delete-data", false, "also delete the trainer's requests, records, bundles and artifacts")
		}
		return cmd
	}
	cmd.Use, cmd.Short = "add NAME", "Make a credential for a "+c.kind
	cmd.Long = "Make a credential for a " + c.kind + ", and admit it to a server that `turngate up` or `turngate nats` runs. No connection is lost."
	if c.kind == "trainer" {
		c.set.add(cmd)
		cmd.Long += " For a trainer that is there already, its settings change."
	}
	fl.StringVar(&c.publicKey, "public-key", "", "public nkey of the "+c.kind+", which keeps the seed to itself; no credential is made")
	return cmd
}

// accessChange is one call of an accessCommand.
type accessChange struct {
	access
	nats            natsFlags // without creds
	keys, publicKey string
	set             settings
	deleteData      bool
	ring            *broker.Keyring
}

// ofContext takes the folder of a context's credential, unless --keys names one.
func (c *accessChange) ofContext(cmd *cobra.Command) error {
	if c.nats.context == "" || cmd.Flags().Changed("keys") {
		return nil
	}
	dir := filepath.Dir(c.nats.creds)
	if _, err := os.Stat(filepath.Join(dir, broker.CredsName(broker.RoleAdmin, broker.RoleAdmin))); c.nats.creds == "" || err != nil {
		return fmt.Errorf("context %s: its credential is not in a server's folder of credentials: want --keys", c.nats.context)
	}
	c.keys = dir
	return nil
}

// reload lets the servers read the keyring again.
func (c *accessChange) reload(cmd *cobra.Command) error {
	if c.nats.url == "" {
		return broker.ErrNoServer
	}
	return broker.ReloadServers(cmd.Context(), c.nats.url, c.ring.SystemCreds())
}

func (c *accessChange) admit(cmd *cobra.Command, name string) error {
	if err := c.add(c.ring, name, c.publicKey); err != nil {
		return err
	}
	effect := "at once"
	err := c.reload(cmd)
	switch {
	case errors.Is(err, broker.ErrNoServer):
		effect = "when a server with " + c.keys + " starts; none answers at " + shownURL(c.nats.url)
	case errors.Is(err, broker.ErrOtherServer):
		effect = "when the servers have their configuration again: `turngate nats config --keys " + plain.Arg(c.keys) + " …`, then `nats-server --signal reload`, twice"
	case err != nil:
		return fmt.Errorf("%s %s has a credential in %s, and no server has read it: %w", c.kind, name, c.keys, err)
	}
	if err := c.set.apply(cmd, natsFlags{url: c.nats.url, creds: c.ring.AdminCreds()}, name); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	switch {
	case c.publicKey != "":
		fmt.Fprintf(out, "%s %s is admitted with its key\n", c.kind, name)
	case c.kind == "trainer":
		printTrainer(out, c.nats.url, c.ring, name)
	case c.kind == "machine":
		fmt.Fprintf(out, "machine  %s: turngate machine serve --nats %s --creds %s\n", name, broker.ShownURL(c.nats.url), plain.Arg(c.ring.MachineCreds(name)))
	default:
		printWorker(out, c.nats.url, c.ring, name)
	}
	fmt.Fprintf(out, "         in effect %s\n", effect)
	return nil
}

// shutOut also reloads the servers if the keyring has no such client, since an
// earlier call may have met no server.
func (c *accessChange) shutOut(cmd *cobra.Command, name string) error {
	removed := c.remove(c.ring, name)
	if removed != nil && !errors.Is(removed, broker.ErrNotFound) {
		return removed
	}
	reloaded := c.reload(cmd)
	out := cmd.OutOrStdout()
	if c.deleteData && (reloaded == nil || errors.Is(reloaded, broker.ErrOtherServer)) {
		err := c.deleteTrainer(cmd, name)
		if err != nil && (removed != nil || !errors.Is(err, broker.ErrNotFound)) { // a trainer may have no data yet
			return err
		}
		fmt.Fprintf(out, "trainer %s: its requests, records, bundles and artifacts are deleted\n", name)
		removed = nil
	}
	switch {
	case removed != nil:
		return removed
	case c.nats.url == "":
		fmt.Fprintf(out, "%s %s: its credential is deleted; a server that reads %s after this does not admit it\n", c.kind, name, c.keys)
	case reloaded != nil:
		return fmt.Errorf("%s %s: its credential is deleted; a running server admits it until it has read %s again: %w", c.kind, name, c.keys, reloaded)
	default:
		fmt.Fprintf(out, "%s %s is shut out\n", c.kind, name)
		if c.kind == "machine" {
			c.retire(cmd, name)
		}
	}
	if c.kind == "trainer" && !c.deleteData {
		fmt.Fprintf(out, "         its requests still run, and its records, bundles and artifacts stay; --delete-data deletes them\n")
	}
	return nil
}

// retire lets the clients of a machine that was shut out end their lines to it.
func (c *accessChange) retire(cmd *cobra.Command, name string) {
	nf := natsFlags{url: c.nats.url, creds: c.ring.AdminCreds()}
	b, err := nf.dial(cmd.Context(), broker.RoleAdmin, broker.RoleAdmin, logger(cmd))
	if err == nil {
		defer b.Close()
		err = machines.Retire(b, name)
	}
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "its clients notice within 90 s: %s\n", oneLine(err.Error(), 300))
	}
}

func (c *accessChange) deleteTrainer(cmd *cobra.Command, name string) error {
	nf := natsFlags{url: c.nats.url, creds: c.ring.AdminCreds()}
	b, err := nf.dial(cmd.Context(), "admin", "admin", logger(cmd))
	if err != nil {
		return err
	}
	defer b.Close()
	return b.Trainers.Delete(cmd.Context(), name)
}

func shownURL(url string) string {
	if url == "" {
		return "any address"
	}
	return broker.ShownURL(url)
}

// settings are the flags for the bounds of one trainer.
type settings struct {
	maxQueue                                            int64
	maxQueueMB, maxBundleMB, maxArtifactMB, maxRecordMB int64
	weight                                              int
}

func (s *settings) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.Int64Var(&s.maxQueue, "max-queue", 0, "most requests in the trainer's queue (0: as it is)")
	fl.Int64Var(&s.maxQueueMB, "max-queue-mb", 0, "most MB of requests in the trainer's queue (0: as it is)")
	fl.Int64Var(&s.maxBundleMB, "max-bundle-mb", 0, "most MB of bundles and large answers (0: as it is)")
	fl.Int64Var(&s.maxArtifactMB, "max-artifact-mb", 0, "most MB of artifacts and large calls (0: as it is)")
	fl.Int64Var(&s.maxRecordMB, "max-record-mb", 0, "MB of states and results above which no more requests of the trainer are taken (0: as it is)")
	fl.IntVar(&s.weight, "weight", 0, "requests that workers take in turn with one of another trainer (0: as it is)")
}

func (s *settings) broker() broker.TrainerSettings {
	return broker.TrainerSettings{MaxQueue: s.maxQueue, MaxQueueBytes: s.maxQueueMB << 20, MaxBundleBytes: s.maxBundleMB << 20, MaxArtifactBytes: s.maxArtifactMB << 20, MaxRecordBytes: s.maxRecordMB << 20, Weight: s.weight}
}

func (s *settings) check() error {
	if max(s.maxQueueMB, s.maxBundleMB, s.maxArtifactMB, s.maxRecordMB) > 1<<30 {
		return usage("--max-queue-mb, --max-bundle-mb, --max-artifact-mb, --max-record-mb: want at most %d", 1<<30)
	}
	return usageOf(s.broker().Validate())
}

// apply changes the settings of a trainer on the running server.
func (s *settings) apply(cmd *cobra.Command, nf natsFlags, tid string) error {
	if *s == (settings{}) {
		return nil
	}
	b, err := nf.dial(cmd.Context(), "admin", "admin", logger(cmd))
	if err != nil {
		return fmt.Errorf("the trainer is admitted, its settings need a running server: %w", err)
	}
	defer b.Close()
	return b.Trainers.Set(cmd.Context(), tid, s.broker())
}
