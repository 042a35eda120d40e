package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/turngate/turngate/internal/playback"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/telemetry"
	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// modelFlags select the answerer of model calls.
type modelFlags struct {
	trainer       string
	maxTokens     int
	stream        string
	plainUpstream bool
	keepReasoning bool
	recording     *playback.Recording                    // of transcript:FILE, once it is open
	looks         map[string]func(context.Context) error // at the opened upstreams, by model; see upstream.Upstream.Look
}

func (f *modelFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.trainer, "trainer", "", "source of the answers to model calls: replay:FILE (a script), transcript:FILE (a recorded rollout) or upstream:URL")
	cmd.Flags().Var(newChoice(&f.stream, "", schema.StreamBuffer, schema.StreamPass), "stream", "form in which streamed answers reach agents: buffer (when complete) or pass (as they arrive; a request says so, too, in gate.stream)")
	cmd.Flags().BoolVar(&f.plainUpstream, "plain-upstream", false, "ask the upstream for neither token ids nor log-probs: for an evaluation, not for training")
	cmd.Flags().BoolVar(&f.keepReasoning, "keep-reasoning", false, "give the upstream the reasoning of earlier tool calls back, also if the agent drops it: for models that think between tool calls")
	cmd.Flags().IntVar(&f.maxTokens, "max-tokens", 0, "largest number of completion tokens of one call (0: as the agent asks)")
}

// check returns all errors in these flags.
func (f *modelFlags) check() error {
	_, err := f.open("")
	clear(f.looks)
	return errors.Join(err, atLeast("max-tokens", f.maxTokens, 0))
}

// open makes the answerer that --trainer names; nil if the flag is empty. An upstream
// is asked for the model, or for its only one.
func (f *modelFlags) open(model string) (trainer.Answerer, error) {
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
	case kind == "transcript" && where != "":
		if f.recording == nil {
			file, err := os.Open(where)
			if err != nil {
				return nil, usage("--trainer: %w", err)
			}
			defer file.Close()
			if f.recording, err = playback.Load(file); err != nil {
				return nil, usage("--trainer: %s: %w", where, err)
			}
		}
		return trainer.Whole(f.recording.Answer), nil
	case kind == "upstream" && where != "":
		key, err := upstream.KeyFromEnvironment()
		if err != nil {
			return nil, usage("--trainer: %w", err)
		}
		u, err := upstream.New(upstream.Config{URL: where, Key: key, Model: model, MaxTokens: f.maxTokens, Plain: f.plainUpstream, KeepReasoning: f.keepReasoning})
		if err != nil {
			return nil, usage("--trainer: %w", err)
		}
		f.see(model, u.Look)
		return f.asking(u.Answer), nil
	default:
		return nil, usage("--trainer: %q is not valid: want replay:FILE, transcript:FILE or upstream:URL", f.trainer)
	}
}

// see adds an upstream to those at which look looks.
func (f *modelFlags) see(model string, look func(context.Context) error) {
	if f.looks == nil {
		f.looks = map[string]func(context.Context) error{}
	}
	f.looks[model] = look
}

// look looks at the opened upstreams, again and again for a time, and returns the reason why
// one of them can answer no call.
func (f *modelFlags) look(cmd *cobra.Command, within time.Duration) error {
	for _, model := range slices.Sorted(maps.Keys(f.looks)) {
		began, said := time.Now(), false
		for {
			err := f.looks[model](cmd.Context())
			if err == nil {
				break
			}
			if time.Since(began) >= within {
				return usage("%w: start it or correct its URL, or let the command wait for it with --wait", err)
			}
			if !said {
				fmt.Fprintf(cmd.ErrOrStderr(), "%v: waiting for it for %s\n", err, within)
				said = true
			}
			select {
			case <-time.After(upstreamEvery):
			case <-cmd.Context().Done():
				return context.Cause(cmd.Context())
			}
		}
	}
	return nil
}

// upstreamEvery is the interval of the looks at an upstream that cannot answer.
const upstreamEvery = time.Second

// asking returns the answerer that asks an upstream.
func (f *modelFlags) asking(answer func(context.Context, *schema.Call, func(*schema.Delta) error) (*schema.Reply, error)) trainer.Answerer {
	return func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
		if c.Stream && f.stream == schema.StreamPass {
			return answer(ctx, &c.Call, c.Emit)
		}
		return answer(ctx, &c.Call, nil)
	}
}

// counted counts the answers of an answerer.
func counted(answer trainer.Answerer, by *telemetry.Answers) trainer.Answerer {
	return func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
		ended := by.Began(ctx)
		reply, err := answer(ctx, c)
		refused := err
		if err == nil {
			refused = schema.CheckAnswer(reply.Message) // the trainer answers with this error
		}
		ended(reply, refused)
		return reply, err
	}
}

// tools returns the tools of the recording, and further tools of a request, which
// the recorded agent did not call. Without a recording there are none.
func (f *modelFlags) tools(more ...schema.ToolSpec) map[string]trainer.Tool {
	r := f.recording
	if r == nil {
		return nil
	}
	names := r.Tools()
	for i := range more {
		names = append(names, more[i].Name)
	}
	out := map[string]trainer.Tool{}
	for _, name := range names {
		out[name] = func(ctx context.Context, c *trainer.ToolCall) (string, error) {
			return r.Tool(ctx, c.Rollout, c.Attempt, c.Name, c.Arguments)
		}
	}
	return out
}

func trainerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "trainer", Short: "Answer model calls; add and remove trainers"}
	var nf natsFlags
	var mf modelFlags
	var monitor metricsFlags
	var name, shard, model string
	var takeOver bool
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Answer a trainer's model calls until stopped",
		Long:  "Answer a trainer's model calls until stopped. The key of an upstream comes from TURNGATE_UPSTREAM_KEY or the file TURNGATE_UPSTREAM_KEY_FILE.",
		Args:  cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error {
			return usageOf(mf.check(), monitor.check("metrics"), flagOf("name", schema.CheckTrainer(name)))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := mf.open(model)
			if err != nil {
				return err
			}
			if answer == nil {
				return usage("--trainer: say who answers: replay:FILE or upstream:URL")
			}
			log := newLogger(cmd, zerolog.InfoLevel)
			m, err := monitor.begin(log)
			if err != nil {
				return err
			}
			defer m.close()
			b, err := nf.dial(cmd.Context(), "trainer", name, log)
			if err != nil {
				return err
			}
			defer b.Close()
			t, err := trainer.Dial(cmd.Context(), trainer.Config{Broker: b, Name: name, Shard: shard, AnswerAll: true, TakeOver: takeOver, Tools: mf.tools(), Log: log})
			if err != nil {
				return err
			}
			defer t.Close()
			log.Info().Str("trainer", name).Int("pid", os.Getpid()).Msg("answering model calls")
			if look := mf.looks[model]; look != nil {
				if err := look(cmd.Context()); err != nil {
					log.Warn().Err(err).Msg("calls wait for the upstream")
				}
			}
			m.ready(until(cmd.Context(), t.Ready))
			err = t.Serve(cmd.Context(), counted(answer, m.answers()))
			if cmd.Context().Err() != nil {
				return nil
			}
			return err
		},
	}
	nf.trainer = &name
	nf.add(serve, defaultURL)
	mf.add(serve)
	monitor.add(serve.Flags())
	serve.Flags().StringVar(&model, "model", "", "model to ask the upstream for (default: its only one)")
	serve.Flags().StringVar(&name, "name", "local", "name of the trainer")
	serve.Flags().StringVar(&shard, "shard", schema.DefaultShard, "shard whose calls are answered")
	serve.Flags().BoolVar(&takeOver, "take-over", false, "end another process that answers this shard")
	cmd.AddCommand(serve, accessCommand(trainerAccess, true), accessCommand(trainerAccess, false))
	return cmd
}
