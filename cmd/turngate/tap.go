package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/internal/progress"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// tapFlags select the events that are shown.
type tapFlags struct {
	trainer, group, task string
	Type                 []string
	since                time.Duration
	output               string
}

func (f *tapFlags) add(fl *pflag.FlagSet) {
	fl.StringSliceVar(&f.Type, "type", nil, "types of events: "+orList(eventTypes())+" (default: all)")
	fl.DurationVar(&f.since, "since", 0, "events of the last time, such as 10m, too (default: of all rollouts none, of one all)")
	addOutput(fl, &f.output, "text", formatJSONL)
}

func (f *tapFlags) check() error {
	wrong := []error{atLeast("since", f.since, 0)}
	for _, name := range f.Type {
		wrong = append(wrong, oneOf("type", name, eventTypes()...))
	}
	if f.trainer != "" {
		wrong = append(wrong, flagOf("trainer", schema.CheckTrainer(f.trainer)))
	}
	return errors.Join(wrong...)
}

func eventTypes() []string {
	var out []string
	for _, t := range []schema.EventType{schema.EventPhase, schema.EventStep, schema.EventLLM, schema.EventLog, schema.EventWait, schema.EventNet, schema.EventVerify, schema.EventShell, schema.EventResult} {
		out = append(out, string(t))
	}
	return out
}

func tapCommand() *cobra.Command {
	var nf natsFlags
	var f tapFlags
	cmd := &cobra.Command{
		Use:   "tap [ROLLOUT]",
		Short: "Watch rollouts live: phases, model calls, tool calls, output, results",
		Long: "Watch rollouts live, with the credentials of an operator (ops.nk). With a rollout's id its events so far are shown first, and it ends with the result; without one every rollout is shown from now on.\n\n" +
			"All of --trainer, --group, --task, --type and --since must hold for an event that is shown.",
		Args: needArgs(0, 1, "the id of one rollout or none"),
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{f.check()}
			for _, name := range args {
				_, err := schema.ParseID(name)
				wrong = append(wrong, err)
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := nf.dial(cmd.Context(), broker.RoleOps, broker.RoleOps, logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			show := f.shower(cmd, b)
			if len(args) == 1 {
				_, err := follow(cmd.Context(), b, schema.ID(args[0]), show)
				return err
			}
			tap, err := b.Events.Tap(cmd.Context(), "")
			if err != nil {
				return err
			}
			if f.since > 0 {
				if err := tap.Since(cmd.Context(), time.Now().Add(-f.since)); err != nil {
					tap.Close()
					return err
				}
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "watching")
			return cmp.Or(tap.Run(cmd.Context(), func(_ broker.Place, e schema.Event) { show(e) }), context.Cause(cmd.Context()))
		},
	}
	nf.add(cmd, defaultURL)
	f.add(cmd.Flags())
	cmd.Flags().StringVar(&f.trainer, "trainer", "", "only rollouts of this trainer")
	cmd.Flags().StringVar(&f.group, "group", "", "only rollouts of this group")
	cmd.Flags().StringVar(&f.task, "task", "", "only rollouts of the task of this name")
	return cmd
}

// maxAsked bounds the rollouts with remembered groups and tasks.
const maxAsked = 10_000

// shower returns a function that prints the events that are selected.
func (f *tapFlags) shower(cmd *cobra.Command, b *broker.Broker) func(schema.Event) {
	out, after := cmd.OutOrStdout(), int64(0)
	if f.since > 0 {
		after = time.Now().Add(-f.since).UnixMilli()
	}
	asked := map[schema.ID]bool{} // whether the group and the task of a rollout are selected
	return func(e schema.Event) {
		if e.At < after || len(f.Type) > 0 && !slices.Contains(f.Type, string(e.Type)) || f.trainer != "" && e.Rollout.Trainer() != f.trainer {
			return
		}
		if f.group != "" || f.task != "" {
			ok, known := asked[e.Rollout]
			if !known {
				q, err := b.Records.Request(cmd.Context(), e.Rollout)
				ok = err == nil && (f.group == "" || q.Group == f.group) && (f.task == "" || q.Task.Name == f.task)
				if err == nil && len(asked) < maxAsked {
					asked[e.Rollout] = ok
				}
			}
			if !ok {
				return
			}
		}
		if f.output != formatJSONL {
			showEvent(out, &e)
			return
		}
		if data, err := json.Marshal(&e); err == nil {
			fmt.Fprintf(plain.JSON(out), "%s\n", data)
		}
	}
}

// follow shows the events of a rollout, which must exist, and returns its result.
func follow(ctx context.Context, b *broker.Broker, id schema.ID, show func(schema.Event)) (*schema.Result, error) {
	if err := exists(ctx, b, id); err != nil {
		return nil, err
	}
	var result *schema.Result
	err := recorded.On(b).Watch(ctx, id, recorded.Listener{
		Begin: func(string, uint64) {},
		Event: func(_ uint64, e *schema.Event) {
			show(*e)
			if e.Type == schema.EventResult && e.Result != nil {
				result = e.Result
			}
		},
	})
	if err == nil && result == nil {
		err = context.Cause(ctx)
	}
	return result, err
}

// exists returns an error unless the system knows a rollout.
func exists(ctx context.Context, b *broker.Broker, id schema.ID) error {
	trainers, err := b.Trainers.List(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(trainers, id.Trainer()) { // an operator may not look in its records
		return fmt.Errorf("%s: there is no trainer %s", id, id.Trainer())
	}
	_, err = recorded.On(b).Rollout(ctx, id, true)
	if errors.Is(err, broker.ErrNotFound) {
		return fmt.Errorf("%s: there is no rollout of that id: %w", id, err)
	}
	return err
}

// showEvent writes one event as lines of text.
func showEvent(w io.Writer, e *schema.Event) {
	line := func(format string, args ...any) {
		text := strings.ReplaceAll(strings.TrimRight(fmt.Sprintf(format, args...), "\n"), "\n", "\n    ")
		fmt.Fprintf(w, "%s %s/%d %s\n", time.UnixMilli(e.At).Format("15:04:05.000"), e.Rollout, e.Attempt, text)
	}
	switch {
	case e.Phase != nil && e.Phase.Fault != nil:
		line("phase %s failed after %d ms: %v", e.Phase.Name, e.Phase.MS, e.Phase.Fault)
	case e.Phase != nil && e.Phase.Ended:
		text := ""
		if e.Phase.Exit != nil {
			text = ", " + e.Phase.Exit.String()
		}
		line("phase %s ended after %d ms%s", e.Phase.Name, e.Phase.MS, text)
	case e.Phase != nil:
		line("phase %s", e.Phase.Name)
	case e.LLM != nil && e.LLM.Call != nil:
		if e.LLM.Note != "" {
			line("call %d: %s", e.LLM.Number, e.LLM.Note)
		}
		line("call %d: %d messages kept, %d new", e.LLM.Number, e.LLM.Call.Keep, len(e.LLM.Call.Messages))
		for _, m := range e.LLM.Call.Messages {
			line("call %d > %s", e.LLM.Number, m)
		}
	case e.LLM != nil && e.LLM.Reply != nil:
		if e.LLM.Note != "" {
			line("call %d: %s", e.LLM.Number, e.LLM.Note)
		}
		line("call %d < %s (%s, %d+%d tokens, cost %s, %d ms)", e.LLM.Number, e.LLM.Reply.Message, e.LLM.Reply.FinishReason,
			e.LLM.Reply.Usage.PromptTokens, e.LLM.Reply.Usage.CompletionTokens, progress.Dollars(e.LLM.Reply.Usage.CostUSD), e.LLM.MS)
	case e.LLM != nil && e.LLM.Fault != nil:
		line("call %d refused: %v", e.LLM.Number, e.LLM.Fault)
	case e.LLM != nil:
		line("call %d: %s", e.LLM.Number, e.LLM.Note)
	case e.Log != nil:
		line("%s %s | %s", e.Log.Source, e.Log.Stream, e.Log.Text)
	case e.Verify != nil:
		v := e.Verify
		text := strings.TrimSpace(v.Path + " " + v.Command)
		switch {
		case v.Fault != nil:
			text += ": " + v.Fault.Error()
		case v.Exit != nil:
			text += ": " + v.Exit.String()
		}
		line("trainer %s %s (%d bytes, %d ms)", v.Do, text, v.Bytes, v.MS)
	case e.Shell != nil:
		line("%s", shellLine(e.Shell))
	case e.Result != nil:
		line("result %s", resultLine(e.Result))
	case len(e.Step) > 0:
		var s agents.Event
		if json.Unmarshal(e.Step, &s) != nil {
			return
		}
		switch s.Kind {
		case "tool_call":
			line("tool %s %s", s.Tool, s.Input)
		case "tool_result":
			line("tool %s %s = %s", s.Tool, s.Input, s.Output)
		default:
			line("%s %s", s.Kind, s.Text)
		}
	}
}

// shellLine describes a command of an operator.
func shellLine(s *schema.ShellEvent) string {
	text := fmt.Sprintf("operator %s, command %d: %s", s.By, s.Number, s.Command)
	switch {
	case !s.Ended:
	case s.Exit != nil:
		text += fmt.Sprintf(": %s (%d ms)", s.Exit, s.MS)
	default:
		text += fmt.Sprintf(" ended after %d ms: %s", s.MS, s.Fault)
	}
	return text
}

func resultLine(r *schema.Result) string {
	text := string(r.Status) + ", reward " + rewardText(r.Reward)
	if r.Fault != nil {
		text += ", " + r.Fault.Error()
	}
	return text
}

func rewardText(r *float64) string {
	if r == nil {
		return "null"
	}
	return fmt.Sprintf("%g", *r)
}
