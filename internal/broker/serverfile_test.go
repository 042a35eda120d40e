package broker_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// Names that look like a number or a word of the configuration stay names.
func TestServerNamesAreText(t *testing.T) {
	t.Parallel()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	for _, name := range []string{"1", "1k", "2mb", "true", "off", "-3", "n1"} {
		text, err := keys.ServerFile(broker.ServerFile{Name: name, Cluster: []broker.Member{{Name: name, Host: "127.0.0.1"}}})
		if err != nil {
			continue // no valid name
		}
		file := filepath.Join(filepath.Dir(keys.Dir()), "nats.conf")
		harness.Must(t, os.WriteFile(file, []byte(text), 0o600))
		opts, err := server.ProcessConfigFile(file)
		if err != nil {
			t.Errorf("nats-server cannot read the file of %q: %v", name, err)
		} else if opts.ServerName != name {
			t.Errorf("server %q has the name %q", name, opts.ServerName)
		}
	}
	for _, f := range []broker.ServerFile{{Name: "1"}, {Name: "true"}} {
		if _, err := keys.ServerFile(f); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// The room of a server does not depend on the free room of its disk at its start.
func TestAServerFileSaysTheSizeOfTheStore(t *testing.T) {
	t.Parallel()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	for size, want := range map[string]int64{"": 1 << 40, "200GB": 200 << 30, "5MB": 5 << 20} {
		text, err := keys.ServerFile(broker.ServerFile{StoreSize: size})
		harness.Must(t, err)
		var opts server.Options
		harness.Must(t, opts.ProcessConfigString(text))
		if opts.JetStreamMaxStore != want {
			t.Errorf("size %q: the server has room for %d bytes, want %d", size, opts.JetStreamMaxStore, want)
		}
	}
	for _, size := range []string{"0GB", "200", "20 GB", "1TB, store_dir: \"/\"", "9999999TB", "-1GB"} {
		if _, err := keys.ServerFile(broker.ServerFile{StoreSize: size}); err == nil || !strings.Contains(err.Error(), "like 200GB") {
			t.Errorf("size %q: got %v", size, err)
		}
	}
}

// TLS without a part of it is refused before anything is written.
func TestHalfOfTLSIsRefused(t *testing.T) {
	t.Parallel()
	cluster := []broker.Member{{Name: "turngate", Host: "127.0.0.1"}}
	for name, tt := range map[string]struct {
		f    broker.ServerFile
		says string
	}{
		"no key":           {broker.ServerFile{Cert: "c.pem"}, "certificate and its key"},
		"no certificate":   {broker.ServerFile{Key: "k.pem"}, "certificate and its key"},
		"a CA alone":       {broker.ServerFile{CA: "ca.pem"}, "both with a CA"},
		"a cluster, no CA": {broker.ServerFile{Cert: "c.pem", Key: "k.pem", Cluster: cluster}, "want a CA"},
		"one server":       {broker.ServerFile{Cert: "c.pem", Key: "k.pem"}, ""},
		"a cluster":        {broker.ServerFile{Cert: "c.pem", Key: "k.pem", CA: "ca.pem", Cluster: cluster}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "creds")
			keys, err := broker.OpenKeyring(dir)
			harness.Must(t, err)
			text, err := keys.ServerFile(tt.f)
			if tt.says == "" {
				harness.Must(t, err)
				if !strings.Contains(text, "c.pem") {
					t.Errorf("got %s", text)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
				t.Errorf("the folder has %v, %v", files, err)
			}
		})
	}
}

// Files for TLS that cannot work together are refused where they are; files of another
// host are not looked for.
func TestTheFilesOfTLS(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	testenv.Certificates(t, dir)
	testenv.Certificates(t, other)
	at := func(name string) string { return filepath.Join(dir, name) }
	far := filepath.Join(dir, "of-another-host.pem")
	garbage := at("garbage.pem")
	harness.Must(t, os.WriteFile(garbage, []byte("no certificate"), 0o600))
	cluster := []broker.Member{{Name: "turngate", Host: "127.0.0.1"}}
	for name, tt := range map[string]struct {
		f    broker.ServerFile
		says string
	}{
		"a leaf node":        {broker.ServerFile{CA: at("ca.pem")}, ""},
		"a cluster":          {broker.ServerFile{Cert: at("server.pem"), Key: at("server-key.pem"), CA: at("ca.pem"), Cluster: cluster}, ""},
		"a leaf with TLS":    {broker.ServerFile{Cert: at("server.pem"), Key: at("server-key.pem"), CA: filepath.Join(other, "ca.pem"), LeafOf: []string{"hub"}}, ""},
		"another host's":     {broker.ServerFile{Cert: far, Key: far, CA: far}, ""},
		"one of another's":   {broker.ServerFile{Cert: at("server.pem"), Key: far, CA: at("ca.pem")}, ""},
		"a CA without any":   {broker.ServerFile{CA: garbage}, "want a PEM file with at least one certificate"},
		"a key as the CA":    {broker.ServerFile{CA: at("server-key.pem")}, "want a PEM file with at least one certificate"},
		"a folder as the CA": {broker.ServerFile{CA: dir}, "is a directory"},
		"another key":        {broker.ServerFile{Cert: at("server.pem"), Key: at("key.pem")}, "private key does not match"},
		"another CA":         {broker.ServerFile{Cert: at("server.pem"), Key: at("server-key.pem"), CA: filepath.Join(other, "ca.pem"), Cluster: cluster}, "signed by unknown authority"},
	} {
		err := tt.f.CheckTLS()
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A server that reads the cluster's file while it is written gets a whole file.
func TestTheClustersFileIsAlwaysWhole(t *testing.T) {
	t.Parallel()
	keys, err := broker.OpenKeyring(filepath.Join(t.TempDir(), "creds"))
	harness.Must(t, err)
	var members []broker.Member
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"} {
		members = append(members, broker.Member{Name: name, Host: strings.Repeat("h", 200) + "." + name})
	}
	write := func() {
		if _, err := keys.ServerFile(broker.ServerFile{Name: "n1", Cluster: members}); err != nil {
			t.Error(err)
		}
	}
	write()
	file := filepath.Join(keys.Dir(), "cluster.conf")
	want, err := os.ReadFile(file)
	harness.Must(t, err)
	var writers sync.WaitGroup
	done := make(chan struct{})
	writers.Go(func() {
		defer close(done)
		for range 300 {
			write()
		}
	})
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		got, err := os.ReadFile(file)
		harness.Must(t, err)
		if string(got) != string(want) {
			t.Errorf("a reader got %d of %d bytes", len(got), len(want))
			break
		}
	}
	writers.Wait()
}
