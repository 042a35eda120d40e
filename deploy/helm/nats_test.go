package helm_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// TestNATS runs the commands of the README that make the credentials, and reads the
// configuration of the servers with nats-server. testdata/nats.conf is the file that NATS'
// chart 2.14.2 makes of nats.yaml.
func TestNATS(t *testing.T) {
	dir := t.TempDir()
	in := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	page := readme(t)
	command := regexp.MustCompile(`(?m)^turngate (nats config .*) > nats\.conf$`).FindStringSubmatch(page)
	if command == nil {
		t.Fatal("the README has no command for nats.conf")
	}
	harness.Must(t, os.Mkdir(in("turngate"), 0o700))
	config := exec.Command(testenv.Binary(t), strings.Fields(command[1])...)
	config.Dir, config.Stderr = in("turngate"), io.Discard
	out, err := config.Output()
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(in("turngate", "nats.conf"), out, 0o600))
	defaults := load(t, chartDir).Values
	secrets := regexp.MustCompile(`(?m)^kubectl -n turngate create secret generic (\S+)(.*)$`).FindAllStringSubmatch(page, -1)
	var made []string
	for _, m := range secrets {
		made = append(made, m[1])
		for _, file := range regexp.MustCompile(`--from-file (\S+)`).FindAllStringSubmatch(m[2], -1) {
			if _, err := os.Stat(in("turngate", file[1])); err != nil && m[1] != object(defaults).at("serve.tokensSecret") {
				t.Errorf("%s: %v", m[0], err)
			}
		}
	}
	for _, want := range []any{"turngate-nats", object(defaults).at("worker.credentials.secret"), object(defaults).at("operator.secret"), object(defaults).at("serve.tokensSecret")} {
		if !slices.Contains(made, fmt.Sprint(want)) {
			t.Errorf("the README does not make the Secret %s", want)
		}
	}
	harness.Must(t, os.Mkdir(in("nats-config"), 0o700))
	text, err := os.ReadFile(filepath.Join("testdata", "nats.conf"))
	harness.Must(t, err)
	harness.Must(t, os.WriteFile(in("nats-config", "nats.conf"), text, 0o600))
	given := object(read(t, "deploy/helm/turngate/nats.yaml"))
	for _, path := range []string{"config.jetstream.fileStore.pvc.size", "config.jetstream.memoryStore.maxSize", "config.jetstream.merge.sync_interval", "config.merge.$include", "config.cluster.merge.zzz$include"} {
		if value := given.at(path); value == nil || !strings.Contains(string(text), fmt.Sprint(value)) {
			t.Errorf("testdata/nats.conf has not the value of nats.yaml, %s: %v", path, value)
		}
	}
	t.Setenv("SERVER_NAME", "nats-1")
	check(t, in("nats-config", "nats.conf"))
}

// check reads a file of nats-server. It has turngate's accounts, bounds and secret of the
// cluster, and the chart's name, ports and disk.
func check(t *testing.T, file string) {
	t.Helper()
	o, err := server.ProcessConfigFile(file)
	harness.Must(t, err)
	var accounts []string
	for _, a := range o.Accounts {
		accounts = append(accounts, a.Name)
	}
	for _, want := range []string{"WORKERS", "T_alpha", "OPS", "SYS"} {
		if !slices.Contains(accounts, want) {
			t.Errorf("there is no account %s: %v", want, accounts)
		}
	}
	if o.MaxPayload != 8<<20 || !o.SyncAlways || o.StoreDir != "/data" || o.JetStreamMaxStore != 50<<30 || o.JetStreamMaxMemory != 256<<20 || !o.JetStream {
		t.Errorf("payload %d, sync %v, %s with %d bytes, and %d in memory", o.MaxPayload, o.SyncAlways, o.StoreDir, o.JetStreamMaxStore, o.JetStreamMaxMemory)
	}
	if o.ServerName != "nats-1" || o.Port != 4222 || o.Cluster.Name != "nats" || o.Cluster.Port != 6222 {
		t.Errorf("server %s, port %d, cluster %s, port %d", o.ServerName, o.Port, o.Cluster.Name, o.Cluster.Port)
	}
	if o.Cluster.Username != "turngate" || len(o.Cluster.Password) < 32 || len(o.Routes) != 3 {
		t.Errorf("user %q of the cluster, %d routes", o.Cluster.Username, len(o.Routes))
	}
	for _, r := range o.Routes {
		if secret, _ := r.User.Password(); secret != o.Cluster.Password || !strings.HasSuffix(r.Hostname(), ".nats-headless") {
			t.Errorf("the route to %s is not one of the cluster", r.Host)
		}
	}
}
