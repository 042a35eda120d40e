package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/enroll"
)

// addKeys adds the flags for a server's folder of credentials.
func (c *accessChange) addKeys(cmd *cobra.Command) {
	c.nats.addContext(cmd.Flags())
	cmd.Flags().StringVar(&c.keys, "keys", filepath.Join(stateDir(), "creds"), "the server's folder of credentials: creds in its --state, or its --creds-dir")
}

// openRequests opens the requests beside the keyring.
func (c *accessChange) openRequests() (requests *enroll.Requests, err error) {
	if _, err := os.Stat(c.keys); err != nil {
		return nil, usage("--keys: want the server's folder of credentials: %w", err)
	}
	if c.ring, err = broker.OpenKeyring(c.keys); err != nil {
		return nil, err
	}
	return enroll.OpenRequests(c.ring)
}

// oneCode checks that the argument of a command is a code.
func oneCode(code *string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) (err error) {
		if len(args) != 1 {
			return usage("%d codes are not valid: want one", len(args))
		}
		*code, err = enroll.ParseCode(args[0])
		return usageOf(err)
	}
}

func machineRequestsCommand() *cobra.Command {
	c := &accessChange{access: machineAccess()}
	var output string
	cmd := &cobra.Command{
		Use:     "requests",
		Short:   "List the hosts that ask to become machines",
		Long:    "List the hosts that ask to become machines, by `turngate machine enroll`, and those whose request has just been denied or has expired.",
		Args:    cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return usageOf(c.ofContext(cmd)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			requests, err := c.openRequests()
			if err != nil {
				return err
			}
			list, bad := requests.List()
			if !isTable(output) {
				return errors.Join(printList(cmd.OutOrStdout(), output, list), bad)
			}
			t := newList(cmd.OutOrStdout(), output, "CODE", "MACHINE", "HOST", "SYSTEM", "VERSION", "STATE", "KEY")
			t.spare, t.cut = []string{"VERSION", "SYSTEM"}, []string{"HOST", "KEY"}
			for _, q := range list {
				t.row(q.Code, q.Machine, oneLine(q.Host, 60), oneLine(q.System, 30), oneLine(q.Version, 30), requestState(requests, q), q.Key)
			}
			return errors.Join(t.flush(), bad)
		},
	}
	c.addKeys(cmd)
	addListOutput(cmd.Flags(), &output)
	return cmd
}

func requestState(requests *enroll.Requests, q *enroll.Request) string {
	switch now := time.Now(); {
	case errors.Is(q.Pending(now), enroll.ErrDenied):
		return "denied"
	case q.Pending(now) != nil:
		return "expired"
	case requests.Replaces(q) != nil:
		return "asks for another key, " + q.Expires.Sub(now).Round(time.Second).String() + " left"
	default:
		return "asks, " + q.Expires.Sub(now).Round(time.Second).String() + " left"
	}
}

// approval is one call of `turngate machine approve`.
type approval struct {
	accessChange
	code         string
	yes, replace bool
}

func machineApproveCommand() *cobra.Command {
	a := &approval{accessChange: accessChange{access: machineAccess()}}
	cmd := &cobra.Command{
		Use:   "approve CODE",
		Short: "Admit a host that asks to become a machine",
		Long: "Show the host that asks with this code, ask whether it is to be admitted, and admit its key to a server that `turngate up` or `turngate nats` runs.\n\n" +
			"The code is a part of the key's digest: a host that shows it has the key. Everything else is the word of the host.",
		Args:    oneCode(&a.code),
		PreRunE: func(cmd *cobra.Command, _ []string) error { return usageOf(a.ofContext(cmd)) },
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.approve(cmd) },
	}
	fl := cmd.Flags()
	fl.StringVar(&a.nats.url, "nats", defaultURL, "URL of the running NATS server, or of one server of its cluster; empty: no server runs")
	a.addKeys(cmd)
	fl.BoolVar(&a.replace, "replace", false, "the host's key may replace that of a machine with its name, which is shut out at once")
	fl.BoolVar(&a.yes, "yes", false, "do not ask")
	return cmd
}

func (a *approval) approve(cmd *cobra.Command) error {
	requests, err := a.openRequests()
	if err != nil {
		return err
	}
	q, err := requests.Get(a.code)
	if err == nil {
		err = q.Pending(time.Now())
	}
	if err != nil {
		return err
	}
	replaces := requests.Replaces(q)
	switch {
	case replaces != nil && !errors.Is(replaces, enroll.ErrHasKey):
		return replaces
	case replaces != nil && !a.replace:
		return fmt.Errorf("%w: --replace shuts it out, and admits %s in its place", replaces, oneLine(q.Host, 60))
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "code     %s\nmachine  %s\nhost     %s, %s, turngate %s\nkey      %s\n", q.Code, q.Machine, oneLine(q.Host, 60), oneLine(q.System, 30), oneLine(q.Version, 30), q.Key)
	if replaces != nil {
		fmt.Fprintf(out, "replaces the key of %s, which is shut out\n", q.Machine)
	}
	if !a.yes {
		fmt.Fprint(cmd.ErrOrStderr(), "Admit the host, if it shows this code? [y/N] ")
		answer, err := readLine(cmd.Context(), cmd.InOrStdin())
		if err != nil {
			return err
		}
		if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
			return errors.New("nothing has changed: the answer was not y; --yes does not ask")
		}
	}
	a.publicKey, a.add = q.Key, func(*broker.Keyring, string, string) error { return requests.Admit(q, replaces != nil, time.Now()) }
	if err := a.admit(cmd, q.Machine); err != nil {
		return err
	}
	if replaces != nil && a.nats.url != "" {
		a.retire(cmd, q.Machine)
	}
	return requests.Remove(q.Code)
}

func machineDenyCommand() *cobra.Command {
	c := &accessChange{access: machineAccess()}
	var code string
	cmd := &cobra.Command{
		Use:     "deny CODE",
		Short:   "Refuse a host that asks to become a machine",
		Args:    oneCode(&code),
		PreRunE: func(cmd *cobra.Command, _ []string) error { return usageOf(c.ofContext(cmd)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			requests, err := c.openRequests()
			if err != nil {
				return err
			}
			q, err := requests.Deny(code, time.Now())
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "the request of %s to become the machine %s is denied\n", oneLine(q.Host, 60), q.Machine)
			return nil
		},
	}
	c.addKeys(cmd)
	return cmd
}
