package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/contexts"
)

func contextCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Servers and credentials by name: add, use, list, show, remove",
		Long: "A context is a server with a credential. A command takes the one that --context names, or else the current one if it has neither --nats nor --creds.\n\n" +
			"Contexts are those of the nats command, in ~/.config/nats/context. The choice of the current one is turngate's own.",
	}
	cmd.AddCommand(contextAddCommand(), contextUseCommand(), contextListCommand(), contextShowCommand(), contextRemoveCommand())
	return cmd
}

func contextAddCommand() *cobra.Command {
	var f natsFlags
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a context",
		Long:  "Add a context, in a file of mode 0600. It has the path of the credential, not the credential itself. A credential in a folder that `turngate up` has made stands for all of the folder: a command takes the one of its role.",
		Args:  needArgs(1, 1, "the name of one context"),
		PreRunE: func(_ *cobra.Command, args []string) error {
			var wrong []error
			for _, name := range args {
				wrong = append(wrong, flagOf("NAME", contexts.CheckName(name)))
			}
			return usageOf(append(wrong, checkURL(f.url), flagOf("creds", readable(f.creds)))...)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := contexts.Open()
			if err != nil {
				return err
			}
			c, err := newContext(args[0], f.url, f.creds, "")
			if err != nil {
				return err
			}
			return store.Add(c, nil)
		},
	}
	cmd.Flags().StringVar(&f.url, "nats", defaultURL, "URL of the NATS server")
	cmd.Flags().StringVar(&f.creds, "creds", "", "file with NATS credentials: a .creds file or an nkey seed")
	return cmd
}

// newContext returns a context with an absolute path of its credential.
func newContext(name, url, creds, description string) (contexts.Context, error) {
	c := contexts.Context{Name: name, URL: url, Description: description}
	if creds == "" {
		return c, nil
	}
	var err error
	if c.Creds, err = filepath.Abs(creds); err != nil {
		return c, fmt.Errorf("find the credential: %w", err)
	}
	if role, of := broker.RoleOf(creds); role != "" {
		c.Inbox = broker.InboxFor(role, of)
	}
	return c, nil
}

// checkURL refuses a URL with a password, which other users could read among the
// arguments.
func checkURL(list string) error {
	for one := range strings.SplitSeq(list, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		switch {
		case err != nil || u.Host == "":
			return fmt.Errorf("--nats: %q is not valid: want a URL such as %s", broker.ShownURL(list), defaultURL)
		case u.User != nil:
			return fmt.Errorf("--nats: %q is not valid: want no user and no password in it, but --creds FILE", broker.ShownURL(one))
		}
	}
	return nil
}

func readable(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

func contextUseCommand() *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:   "use NAME | use --none",
		Short: "Choose the current context",
		Args:  needArgs(0, 1, "the name of one context, or --none"),
		PreRunE: func(_ *cobra.Command, args []string) error {
			if none == (len(args) == 1) {
				return usage("want the name of one context, or --none")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := contexts.Open()
			if err != nil {
				return err
			}
			if none {
				return store.Use("")
			}
			return store.Use(args[0])
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "there is no current context")
	return cmd
}

// contextEntry is a context in the list of contexts.
type contextEntry struct {
	contexts.Context
	Current bool   `json:"current"`
	Error   string `json:"error,omitempty"` // why it cannot be used
}

func contextListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the contexts",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := contexts.Open()
			if err != nil {
				return err
			}
			current, err := store.Current()
			if err != nil {
				return err
			}
			list := []contextEntry{}
			for _, name := range store.Names() {
				list = append(list, entryOf(store, name, current))
			}
			out := cmd.OutOrStdout()
			if !isTable(output) {
				return printList(out, output, list)
			}
			t := newList(out, output, "", "NAME", "URL", "CREDENTIAL", "DESCRIPTION")
			t.spare, t.names = []string{"DESCRIPTION"}, []string{"CREDENTIAL"}
			for _, e := range list {
				mark, about := "", e.Description
				if e.Current {
					mark = "*"
				}
				if e.Error != "" {
					about = "cannot be used: " + e.Error
				}
				t.row(mark, e.Name, oneLine(dash(e.URL), 80), oneLine(dash(e.Creds), 200), oneLine(dash(about), 200))
			}
			return t.flush()
		},
	}
	addListOutput(cmd.Flags(), &output)
	return cmd
}

// entryOf reads a context. Its URL has no password.
func entryOf(store *contexts.Store, name, current string) contextEntry {
	c, err := store.Get(name)
	e := contextEntry{Context: c, Current: name == current}
	e.Name, e.URL = name, broker.ShownURL(c.URL)
	if err != nil {
		e.Error = err.Error()
	}
	return e
}

func contextShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show [NAME]",
		Short: "Show a context, by default the current one, as JSON",
		Args:  needArgs(0, 1, "the name of one context or none"),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := contexts.Open()
			if err != nil {
				return err
			}
			current, err := store.Current()
			if err != nil {
				return err
			}
			name := current
			if len(args) == 1 {
				name = args[0]
			}
			if name == "" {
				return usage("NAME: there is no current context; turngate context use NAME chooses one")
			}
			if _, err := store.Get(name); err != nil {
				return usageOf(err)
			}
			return printJSON(cmd.OutOrStdout(), entryOf(store, name, current))
		},
	}
}

func contextRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME",
		Short: "Remove a context; the credential stays",
		Args:  needArgs(1, 1, "the name of one context"),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := contexts.Open()
			if err != nil {
				return err
			}
			return store.Remove(args[0])
		},
	}
}
