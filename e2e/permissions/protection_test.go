package permissions_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// members are all roles of a server with the trainer alpha, the worker w1 and the
// machine m1.
func members() []role {
	return []role{{"trainer", "alpha"}, {"worker", "w1"}, {"machine", "m1"}, {"ops", "ops"}, {"admin", "admin"}}
}

// TestProtection asks servers with the accounts of turngate.
func TestProtection(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, r := range members() {
			b := w.broker(t, r)
			got, account, err := b.Protection(t.Context(), r.kind, r.name)
			if err != nil || got != broker.ProtectionAccounts {
				t.Errorf("%s: got %v in %s, %v", r, got, account, err)
			}
			if got, account, err := b.Protection(t.Context(), "trainer", "beta"); err != nil || got != broker.ProtectionOther {
				t.Errorf("%s as trainer beta: got %v in %s, %v", r, got, account, err)
			}
		}
	})
}

// TestProtectionOfOtherServers asks servers with accounts or users other than turngate's. With
// any limits of the client there, the result is not ProtectionAccounts.
func TestProtectionOfOtherServers(t *testing.T) {
	binary := testenv.NATSServer(t)
	pair, err := nkeys.CreateUser()
	harness.Must(t, err)
	seed, err := pair.Seed()
	harness.Must(t, err)
	key, err := pair.PublicKey()
	harness.Must(t, err)
	creds := filepath.Join(t.TempDir(), "trainer-alpha.nk")
	harness.Must(t, os.WriteFile(creds, seed, 0o600))
	mayAsk := `permissions: { publish: ["$JS.API.>", "$SYS.REQ.USER.INFO"], subscribe: "_INBOX.>" }`
	for name, tt := range map[string]struct {
		config string
		want   broker.Protection
		works  bool // so that it can run rollouts
	}{
		"plain":                      {"", broker.ProtectionNone, true},
		"users without limits":       {"authorization { users: [ { nkey: KEY } ] }", broker.ProtectionOther, true},
		"users who may not ask":      {`authorization { users: [ { nkey: KEY, permissions: { publish: "$JS.API.>", subscribe: "_INBOX.>" } } ] }`, broker.ProtectionOther, false},
		"users with limits":          {"authorization { users: [ { nkey: KEY, " + mayAsk + " } ] }", broker.ProtectionOther, false},
		"one account":                {"accounts { ALL { jetstream: enabled, users: [ { nkey: KEY, " + mayAsk + " } ] } }", broker.ProtectionOther, false},
		"an account without limits":  {"accounts { T_alpha { jetstream: enabled, users: [ { nkey: KEY } ] } }", broker.ProtectionOther, false},
		"a trainer in the workers'":  {"accounts { WORKERS { jetstream: enabled, users: [ { nkey: KEY, " + mayAsk + " } ] } }", broker.ProtectionOther, false},
		"an account of another role": {"accounts { T_beta { jetstream: enabled, users: [ { nkey: KEY, " + mayAsk + " } ] } }", broker.ProtectionOther, false},
	} {
		t.Run(name, func(t *testing.T) {
			port := strconv.Itoa(testenv.FreePort(t))
			file := filepath.Join(t.TempDir(), "nats.conf")
			harness.Must(t, os.WriteFile(file, []byte("listen: \"127.0.0.1:"+port+"\"\njetstream { store_dir: \""+t.TempDir()+"\" }\n"+strings.ReplaceAll(tt.config, "KEY", key)+"\n"), 0o600))
			startServer(t, binary, file)
			url := "nats://127.0.0.1:" + port
			with := creds
			if tt.config == "" {
				with = ""
			}
			awaitServer(t, url, with)
			b, err := broker.Dial(t.Context(), broker.Config{URL: url, Creds: with, Inbox: broker.InboxFor("trainer", "alpha"), Log: zerolog.Nop()})
			harness.Must(t, err)
			defer b.Close()
			if got, account, err := b.Protection(t.Context(), "trainer", "alpha"); err != nil || got != tt.want {
				t.Errorf("got %v in %q, %v", got, account, err)
			}
			if tt.works {
				harness.Must(t, b.Streams.Setup(t.Context(), broker.StreamsConfig{}))
				_, err = b.Trainers.Open(t.Context(), "alpha")
				harness.Must(t, err)
			}
		})
	}
}

// TestDoctorKnowsTheRole lets doctor connect with the credential of each role, also
// from a file with another name.
func TestDoctorKnowsTheRole(t *testing.T) {
	turngate := program(testenv.Binary(t))
	n := testenv.StartNATS(t, "alpha")
	n.AdmitWorker(t, "w1")
	harness.Must(t, n.AddMachine("m1", ""))
	harness.Must(t, n.Reload())
	w := &world{url: n.URL(), keys: n.Keyring}
	doctor := func(args ...string) string {
		_, out, errOut := turngate.run(t, append([]string{"doctor", "--nats", w.url, "--state", t.TempDir(), "--agents", t.TempDir()}, args...)...)
		return out + errOut
	}
	for _, r := range members() {
		renamed := filepath.Join(t.TempDir(), "nats.nk")
		seed, err := os.ReadFile(w.creds(r))
		harness.Must(t, err)
		harness.Must(t, os.WriteFile(renamed, seed, 0o600))
		for _, args := range [][]string{{"--creds", w.creds(r)}, {"--creds", renamed, "--role", r.kind + ":" + r.name}} {
			out := doctor(args...)
			if !strings.Contains(out, "ok       NATS") || !strings.Contains(out, "ok       accounts") || r.kind != "machine" && !strings.Contains(out, "ok       records          1 trainer") {
				t.Errorf("%s: %v\n%s", r, args, out)
			}
		}
		if r.kind == "admin" {
			continue // may use every inbox
		}
		if out := doctor("--creds", renamed); !strings.Contains(out, "problem  NATS") || !strings.Contains(out, "is not that of the worker doctor") || !strings.Contains(out, "--role") {
			t.Errorf("%s without its role:\n%s", r, out)
		}
	}
	if out := doctor("--role", "boss:x"); !strings.Contains(out, `--role: "boss:x" is not valid: want trainer:NAME`) {
		t.Errorf("got %s", out)
	}
}
