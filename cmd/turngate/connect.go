package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
)

// natsFlags are the flags for the connection to NATS.
type natsFlags struct{ url, creds string }

func (f *natsFlags) add(cmd *cobra.Command, url string) { f.addTo(cmd.Flags(), url) }

func (f *natsFlags) addTo(fl *pflag.FlagSet, url string) {
	fl.StringVar(&f.url, "nats", url, "URL of the NATS server")
	fl.StringVar(&f.creds, "creds", "", "file with NATS credentials: a .creds file or an nkey seed")
}

// dial connects as a role. Each name has its own inbox, which the permissions of
// its credentials require.
func (f *natsFlags) dial(ctx context.Context, role, name string, log zerolog.Logger) (*broker.Broker, error) {
	if f.url == "" {
		return nil, usage("--nats: say where the NATS server is, such as nats://127.0.0.1:4222")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return broker.Dial(ctx, broker.Config{URL: f.url, Creds: f.creds, Name: "turngate " + role + " " + name, Inbox: broker.InboxFor(role, name), Log: log})
}

const defaultURL = "nats://127.0.0.1:4222"

// stateDir returns the folder for the state of this user's workers and servers.
func stateDir() string {
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "turngate")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "turngate")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("turngate-state-%d", os.Geteuid())) // refused if it is another user's
}

// cacheDir returns the folder in which this user's agents are installed.
func cacheDir() string {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "turngate", "agents")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("turngate-agents-%d", os.Geteuid()))
}

func splitList(s string) []string {
	var out []string
	for _, part := range strings.Split(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
