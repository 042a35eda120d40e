package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/contexts"
)

// natsFlags are the flags for the connection to NATS.
type natsFlags struct {
	url, creds string
	context    string // from which url and creds are; empty: from none
	// trainer has the name of the trainer as which the command connects, the flag --name;
	// nil: it has none.
	trainer *string
	// local reports whether the command needs no server here, so that the current context
	// is not used; nil: it always needs one.
	local func(cmd *cobra.Command, args []string) bool
}

func (f *natsFlags) add(cmd *cobra.Command, url string) { f.addTo(cmd.Flags(), url) }

func (f *natsFlags) addTo(fl *pflag.FlagSet, url string) {
	fl.StringVar(&f.url, "nats", url, "URL of the NATS server")
	fl.StringVar(&f.creds, "creds", "", "file with NATS credentials: a .creds file or an nkey seed")
	f.addContext(fl)
}

func (f *natsFlags) addContext(fl *pflag.FlagSet) {
	fl.Var(&contextFlag{f}, "context", `context that has the URL and the credentials, one of 'turngate context ls' (default: the current one; "": none)`)
}

// contextFlag is the flag --context. By it resolveContext finds the other flags.
type contextFlag struct{ of *natsFlags }

func (c *contextFlag) Type() string       { return "string" }
func (c *contextFlag) Set(s string) error { c.of.context = s; return nil }
func (c *contextFlag) String() string {
	if c.of == nil { // pflag asks a zero value, too
		return ""
	}
	return c.of.context
}

// resolveContext takes the URL and the credentials of a command from --context, or from the
// current context if the command has neither --nats nor --creds.
func resolveContext(cmd *cobra.Command, args []string) error {
	fl := cmd.Flags()
	flag := fl.Lookup("context")
	if flag == nil {
		return nil
	}
	own, ok := flag.Value.(*contextFlag)
	if !ok {
		return nil
	}
	f := own.of
	given := fl.Changed("nats") || fl.Changed("creds")
	switch {
	case given && flag.Changed && f.context != "":
		return usage("--context: it has the URL and the credentials: leave out --nats and --creds")
	case given || flag.Changed && f.context == "":
		f.takeName(fl)
		return nil
	}
	store, err := contexts.Open()
	if err == nil && f.context == "" && (f.local == nil || !f.local(cmd, args)) {
		f.context, err = store.Current()
	}
	if err != nil || f.context == "" {
		return usageOf(err)
	}
	c, err := store.Get(f.context)
	if err != nil {
		if !flag.Changed {
			err = fmt.Errorf("the current %w; turngate context use NAME, or --none", err)
		}
		return usageOf(err)
	}
	f.url, f.creds = c.URL, c.Creds
	f.takeName(fl)
	return nil
}

// takeName names the trainer by its credential, unless --name does.
func (f *natsFlags) takeName(fl *pflag.FlagSet) {
	if role, name := broker.RoleOf(f.creds); f.trainer != nil && role == broker.RoleTrainer && !fl.Changed("name") {
		*f.trainer = name
	}
}

// choose selects the credential of a role. The credential of a context names its folder, which
// has the credentials of the other roles. A file without a role in its name stays.
func (f *natsFlags) choose(role, name string) error {
	was, of := broker.RoleOf(f.creds)
	if was == "" || was == role && of == name || f.creds == "" {
		return nil
	}
	is, want := "that of "+aRole(was, of), aRole(role, name)
	if f.context == "" {
		return usage("--creds: %s is %s, and this command needs that of %s", f.creds, is, want)
	}
	beside := filepath.Join(filepath.Dir(f.creds), broker.CredsName(role, name))
	if _, err := os.Stat(beside); err != nil {
		return usage("context %s: %s is %s, and this command needs that of %s: there is no %s", f.context, f.creds, is, want, beside)
	}
	f.creds = beside
	return nil
}

// aRole names a client.
func aRole(role, name string) string {
	switch role {
	case broker.RoleOps:
		return "an operator (ops.nk)"
	case broker.RoleAdmin:
		return "the admin (admin.nk)"
	default:
		return "the " + role + " " + name
	}
}

// dial connects as a role. Each name has its own inbox, which the permissions of
// its credentials require.
func (f *natsFlags) dial(ctx context.Context, role, name string, log zerolog.Logger) (*broker.Broker, error) {
	if f.url == "" {
		return nil, usage("--nats: say where the NATS server is, such as nats://127.0.0.1:4222")
	}
	if err := f.choose(role, name); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 70*time.Second) // a silent server takes 30 s for each of two connections
	defer cancel()
	b, err := broker.Dial(ctx, broker.Config{URL: f.url, Creds: f.creds, Name: "turngate " + role + " " + name, Inbox: broker.InboxFor(role, name), Log: log})
	if err == nil {
		if err = b.CheckInbox(ctx); err != nil {
			b.Close()
		}
	}
	switch {
	case errors.Is(err, broker.ErrOtherRole):
		err = usage("the credential %s is not that of %s", f.creds, aRole(role, name))
	case err == nil:
		return b, nil
	}
	if f.context != "" {
		err = fmt.Errorf("context %s: %w", f.context, err)
	}
	return nil, err
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
func cacheDir() string { return cacheFor("agents") }

// cacheFor returns a folder of this user for files that turngate can make again.
func cacheFor(what string) string {
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "turngate", what)
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("turngate-%s-%d", what, os.Geteuid()))
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
