package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/schema"
)

func tapCommand() *cobra.Command {
	var nf natsFlags
	var output string
	cmd := &cobra.Command{
		Use:   "tap [ROLLOUT]",
		Short: "Watch rollouts live: phases, model calls, tool calls, output, results",
		Long:  "Watch rollouts live. With a rollout's id its events so far are shown first, and it ends with the result; without one every rollout is shown from now on.",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var id schema.ID
			if len(args) == 1 {
				var err error
				if id, err = schema.ParseID(args[0]); err != nil {
					return &exitError{exitUsage, err}
				}
			}
			b, err := nf.dial(cmd.Context(), "ops", "ops", logger(cmd))
			if err != nil {
				return err
			}
			defer b.Close()
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			out := cmd.OutOrStdout()
			tap, err := b.Events.Tap(ctx, id)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "watching")
			err = tap.Run(ctx, func(_ broker.Place, e schema.Event) {
				if output == "jsonl" {
					if data, err := json.Marshal(&e); err == nil {
						fmt.Fprintf(plain.JSON(out), "%s\n", data)
					}
				} else {
					showEvent(out, &e)
				}
				if id != "" && e.Type == schema.EventResult {
					cancel()
				}
			})
			return cmp.Or(err, context.Cause(cmd.Context()))
		},
	}
	nf.add(cmd, defaultURL)
	addOutput(cmd.Flags(), &output, "text", "jsonl")
	return cmd
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
			e.LLM.Reply.Usage.PromptTokens, e.LLM.Reply.Usage.CompletionTokens, dollars(e.LLM.Reply.Usage.CostUSD), e.LLM.MS)
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
