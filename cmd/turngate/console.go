package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/vocabulary"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

func consoleCommand() *cobra.Command {
	var nf natsFlags
	var mf metricsFlags
	var name, listen, tokenizer string
	var open, readOnly bool
	cmd := &cobra.Command{
		Use:   "console [RUNS]",
		Short: "Show the rollouts of a folder of jobs, or with --nats of a running system, in a browser",
		Long: "Show rollouts in a browser of this host: those of a job or of a folder of jobs (default: runs), of turngate or of Harbor, or with --nats those of a running system.\n\n" +
			"The printed URL opens the console once; after that the next URL is printed, for another browser. With the credentials of an operator (ops.nk) or of the admin (admin.nk) the rollouts of all trainers are shown, with the workers, queues and trainers; with those of a trainer its own rollouts. " +
			"The admin and the trainer can also cancel rollouts and submit them again, and the admin can requeue dead requests.",
		Args: cobra.MaximumNArgs(1),
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{flagOf("listen", console.CheckListen(listen)), mf.check("metrics")}
			if name != "" {
				wrong = append(wrong, flagOf("name", schema.CheckTrainer(name)))
			}
			if nf.url != "" && len(args) > 0 {
				wrong = append(wrong, errors.New("--nats: it reads no folder: leave it out"))
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			texts, err := readTokenizer(tokenizer)
			if err != nil {
				return err
			}
			m, err := mf.begin(newLogger(cmd, zerolog.InfoLevel))
			if err != nil {
				return err
			}
			defer m.close()
			c := console.Config{Listen: listen, Version: version, ReadOnly: readOnly, HTTP: m.http(), Log: logger(cmd), Tokenizer: texts}
			ready := func() error { return nil } // a folder needs no connection
			if nf.url != "" {
				b, trainer, err := nf.dialReader(cmd, name)
				if err != nil {
					return err
				}
				defer b.Close()
				ready = connected(b)
				c.Source, c.System = &console.Bus{System: recorded.On(b), URL: broker.ShownURL(nf.url), Creds: nf.creds, Trainer: trainer}, operate.On(b, trainer)
				if trainer != "" {
					c.Play = playOf(nf, trainer, logger(cmd))
				}
			} else {
				dir := "runs"
				if len(args) > 0 {
					dir = args[0]
				}
				if _, err := os.Stat(dir); err != nil {
					return usage("RUNS: %w: want a folder of jobs, or --nats", err)
				}
				c.Source = &console.Folder{Dir: dir}
			}
			opener, err := newOpener(open)
			if err != nil {
				return err
			}
			defer opener.close()
			c.Link = func(url string) {
				fmt.Fprintln(cmd.OutOrStdout(), url)
				opener.open(cmd.ErrOrStderr(), url)
			}
			server, err := console.New(c)
			if err != nil {
				return err
			}
			m.ready(until(cmd.Context(), ready))
			return server.Run(cmd.Context())
		},
	}
	nf.local = func(_ *cobra.Command, args []string) bool { return len(args) > 0 }
	nf.add(cmd, "")
	mf.add(cmd.Flags())
	cmd.Flags().StringVar(&name, "name", "", "with --nats: trainer of the rollouts (default: the one in the file name of --creds)")
	cmd.Flags().StringVar(&listen, "listen", console.DefaultListen, "loopback address of the console; port 0 is a free one")
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "refuse to cancel, retry and requeue, also if the credential may")
	cmd.Flags().BoolVar(&open, "open", false, "open the URL in this user's browser")
	addTokenizer(cmd.Flags(), &tokenizer)
	return cmd
}

func addTokenizer(fl *pflag.FlagSet, tokenizer *string) {
	fl.StringVar(tokenizer, "tokenizer", "", "tokenizer.json of the model, for the texts of tokens (default: their ids)")
}

// readTokenizer reads the file of the flag; nil without the flag.
func readTokenizer(path string) (*vocabulary.Vocabulary, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // there are no texts without the flag
	}
	v, err := vocabulary.Read(path)
	if err != nil {
		return nil, usage("--tokenizer: %w", err)
	}
	return v, nil
}

// dialReader connects as a trainer: the given one, or else the one in the name of the
// credentials' file. Without both it connects as the admin or an operator, and trainer is
// empty.
func (f *natsFlags) dialReader(cmd *cobra.Command, name string) (b *broker.Broker, trainer string, err error) {
	known, of := broker.RoleOf(f.creds)
	if name == "" && known == broker.RoleTrainer {
		name = of
	}
	role, who := broker.RoleTrainer, name
	switch {
	case name != "":
	case known == broker.RoleAdmin:
		role, who = broker.RoleAdmin, broker.RoleAdmin
	default:
		role, who = broker.RoleOps, broker.RoleOps
	}
	b, err = f.dial(cmd.Context(), role, who, logger(cmd))
	return b, name, err
}
