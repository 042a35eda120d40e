package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/enroll"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

// enrollFlags describe a host that asks to become a machine.
type enrollFlags struct {
	nats, name, state string
}

func machineEnrollCommand() *cobra.Command {
	f := &enrollFlags{}
	cmd := &cobra.Command{
		Use:   "enroll",
		Short: "Ask that this host becomes a machine, without a credential",
		Long: "Make a key on this host, show its code, and wait until an operator approves the code with `turngate machine approve` or denies it. The server was started with --enroll.\n\n" +
			"Then the credential is machine-NAME.nk in --state. Its seed never leaves this host. For a machine that has a credential, this asks for another key in place of it.",
		Args: cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			if f.name == "" {
				f.name = defaultMachineName()
			}
			if f.nats == "" {
				return usage("--nats: say where the NATS server is, such as nats://server:4222")
			}
			return usageOf(flagOf("name", machineAccess().check(f.name)))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.enroll(cmd) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.nats, "nats", defaultURL, "URL of the NATS server")
	fl.StringVar(&f.name, "name", "", "name that the machine asks for (default: that of the host)")
	fl.StringVar(&f.state, "state", filepath.Join(stateDir(), "machine"), "folder for the credential, and for the files of 'turngate machine serve'")
	return cmd
}

// defaultMachineName is the first part of the host's name; empty: it is not valid.
func defaultMachineName() string {
	host, err := os.Hostname()
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(host, ".")
	if machineAccess().check(name) != nil {
		return ""
	}
	return name
}

func (f *enrollFlags) enroll(cmd *cobra.Command) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("the name of this host: %w", err)
	}
	out := cmd.OutOrStdout()
	h := &enroll.Host{
		URL: f.nats, File: filepath.Join(f.state, broker.CredsName(broker.RoleMachine, f.name)),
		Enroll: schema.Enroll{Machine: f.name, Host: oneLine(host, 60), System: runtime.GOOS + "/" + runtime.GOARCH, Version: oneLine(version, 60)},
		Log:    func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) },
	}
	if err := h.Open(); err != nil {
		return err
	}
	h.Asked = func(left time.Duration) {
		fmt.Fprintf(out, "code     %s, valid for %s\nmachine  %s asks to be admitted by %s\nkey      %s\nnext     an operator compares the code, and runs on the server's host: turngate machine approve %s\n",
			h.Code(), left.Round(time.Second), f.name, broker.ShownURL(f.nats), h.Key, h.Code())
	}
	if err := h.Wait(cmd.Context()); err != nil {
		return err
	}
	fmt.Fprintf(out, "machine  %s is admitted: turngate machine serve --nats %s --creds %s --state %s\n", f.name, broker.ShownURL(f.nats), plain.Arg(h.File), plain.Arg(f.state))
	return nil
}
