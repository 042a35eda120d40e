package main

import (
	"context"
	"os"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/trainer/replay"
	"github.com/turngate/turngate/upstream"
)

// modelFlags say who answers.
type modelFlags struct {
	trainer   string
	model     string
	maxTokens int
	stream    string
}

func (f *modelFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.trainer, "trainer", "", "who answers the model calls: replay:FILE or upstream:URL")
	cmd.Flags().StringVar(&f.model, "model", "", "model to ask the upstream for (default: its only one)")
	cmd.Flags().StringVar(&f.stream, "stream", "", "how streamed answers reach agents: buffer (when whole) or pass (as they come; a request says so, too, in gate.stream)")
	cmd.Flags().IntVar(&f.maxTokens, "max-tokens", 0, "most completion tokens of one call (0: as the agent asks)")
}

// open makes the answerer that --trainer names; nil when it names none.
func (f *modelFlags) open() (trainer.Answerer, error) {
	if f.stream != "" && f.stream != schema.StreamBuffer && f.stream != schema.StreamPass {
		return nil, usage("--stream: %q is not valid: want buffer or pass", f.stream)
	}
	if f.trainer == "" {
		return nil, nil
	}
	kind, where, _ := strings.Cut(f.trainer, ":")
	switch {
	case kind == "replay" && where != "":
		s, err := replay.Load(where)
		if err != nil {
			return nil, usage("--trainer: %w", err)
		}
		return trainer.Whole(s.Answer), nil
	case kind == "upstream" && where != "":
		key, err := upstream.KeyFromEnvironment()
		if err != nil {
			return nil, usage("--trainer: %w", err)
		}
		u, err := upstream.New(upstream.Config{URL: where, Key: key, Model: f.model, MaxTokens: f.maxTokens})
		if err != nil {
			return nil, usage("--trainer: %w", err)
		}
		return func(ctx context.Context, c *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
			if c.Stream && f.stream == schema.StreamPass {
				return u.Stream(ctx, c, emit)
			}
			return u.Answer(ctx, c)
		}, nil
	default:
		return nil, usage("--trainer: %q is not valid: want replay:FILE or upstream:URL", f.trainer)
	}
}

func trainerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "trainer", Short: "Answer model calls"}
	var nf natsFlags
	var mf modelFlags
	var name, shard string
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Answer a trainer's model calls until stopped",
		Long:  "Answer a trainer's model calls until stopped. The key of an upstream comes from TURNGATE_UPSTREAM_KEY or the file TURNGATE_UPSTREAM_KEY_FILE.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := mf.open()
			if err != nil {
				return err
			}
			if answer == nil {
				return usage("--trainer: say who answers: replay:FILE or upstream:URL")
			}
			log := newLogger(cmd, zerolog.InfoLevel)
			b, err := nf.dial(cmd.Context(), "trainer", name, log)
			if err != nil {
				return err
			}
			defer b.Close()
			t, err := trainer.New(trainer.Config{Broker: b, Name: name, Shard: shard, Log: log})
			if err != nil {
				return err
			}
			defer t.Close()
			log.Info().Str("trainer", name).Int("pid", os.Getpid()).Msg("answering model calls")
			err = t.ServeStream(cmd.Context(), answer)
			if cmd.Context().Err() != nil {
				return nil
			}
			return err
		},
	}
	nf.add(serve, defaultURL)
	mf.add(serve)
	serve.Flags().StringVar(&name, "name", "local", "name of the trainer")
	serve.Flags().StringVar(&shard, "shard", "", "answer this shard only")
	cmd.AddCommand(serve)
	return cmd
}
