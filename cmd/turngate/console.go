package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

func consoleCommand() *cobra.Command {
	var nf natsFlags
	var name, listen string
	var open bool
	cmd := &cobra.Command{
		Use:   "console [RUNS]",
		Short: "Show rollouts in a browser: those of a folder of jobs, or with --nats those of a running system",
		Long: "Show rollouts in a browser of this host: those of a job or of a folder of jobs (default: runs), or with --nats those of a running system.\n\n" +
			"The printed URL opens the console once; after that the next URL is printed, for another browser. With the credentials of an operator (ops.nk) the rollouts of all trainers are shown, with those of a trainer its own, also the ones that wait for a worker.",
		Args: cobra.MaximumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{flagOf("listen", console.CheckListen(listen))}
			if name != "" {
				wrong = append(wrong, flagOf("name", schema.CheckTrainer(name)))
			}
			if nf.url != "" && len(args) > 0 {
				wrong = append(wrong, errors.New("--nats: it reads no folder: leave it out"))
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var source console.Source
			if nf.url != "" {
				b, trainer, err := nf.dialReader(cmd, name)
				if err != nil {
					return err
				}
				defer b.Close()
				source = &console.Bus{System: recorded.On(b), URL: nf.url, Trainer: trainer}
			} else {
				dir := "runs"
				if len(args) > 0 {
					dir = args[0]
				}
				if _, err := os.Stat(dir); err != nil {
					return usage("RUNS: %w: want a folder of jobs, or --nats", err)
				}
				source = &console.Folder{Dir: dir}
			}
			opener, err := newOpener(open)
			if err != nil {
				return err
			}
			defer opener.close()
			server, err := console.New(console.Config{Source: source, Listen: listen, Version: version, Log: logger(cmd), Link: func(url string) {
				fmt.Fprintln(cmd.OutOrStdout(), url)
				opener.open(cmd.ErrOrStderr(), url)
			}})
			if err != nil {
				return err
			}
			return server.Run(cmd.Context())
		},
	}
	nf.local = func(_ *cobra.Command, args []string) bool { return len(args) > 0 }
	nf.add(cmd, "")
	cmd.Flags().StringVar(&name, "name", "", "with --nats: trainer whose rollouts are shown (default: the one in the file name of --creds)")
	cmd.Flags().StringVar(&listen, "listen", console.DefaultListen, "loopback address of the console; port 0 is a free one")
	cmd.Flags().BoolVar(&open, "open", false, "open the URL in this user's browser")
	return cmd
}

// dialReader connects as a trainer: the given one, or else the one in the name of the
// credentials' file. Without both it connects as an operator, and trainer is empty.
func (f *natsFlags) dialReader(cmd *cobra.Command, name string) (b *broker.Broker, trainer string, err error) {
	if role, of := broker.RoleOf(f.creds); name == "" && role == broker.RoleTrainer {
		name = of
	}
	role, who := broker.RoleTrainer, name
	if name == "" {
		role, who = broker.RoleOps, broker.RoleOps
	}
	b, err = f.dial(cmd.Context(), role, who, logger(cmd))
	return b, name, err
}
