package recorded

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/turngate/turngate/internal/table"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// Formats lists the formats of Export. The first three have training rows, the
// others one document per rollout and line.
func Formats() []string {
	return []string{"jsonl", "parquet", "arrow", "atif", "atif-1.7", "openenv", "verifiers"}
}

// Summary has the counts of an export.
type Summary struct {
	Rollouts  int  // with a transcript
	Rows      int  // 0 for formats of whole rollouts
	Positions int  // tokens of all rows
	Counted   bool // the format has tokens to train on, of which Tokens has the counts
	Tokens    trajectory.Tokens
	Findings  []Found
	Skipped   []error // rollouts without a readable transcript
}

// Found is a finding in one rollout.
type Found struct {
	Rollout string
	trajectory.Finding
}

// Export writes rollouts in a format of Formats. It leaves out a rollout with a
// missing or unreadable transcript and names it in Summary.Skipped.
func Export(ctx context.Context, w io.Writer, format string, list []*Rollout, o trajectory.Options) (sum Summary, err error) {
	e, err := open(w, format, &o, &sum)
	if err != nil {
		return sum, err
	}
	for _, r := range list {
		if err := ctx.Err(); err != nil {
			return sum, context.Cause(ctx)
		}
		data, t, err := r.read(ctx, o)
		if r.Unread != nil {
			err = r.Unread
		}
		missing := err != nil && r.missing(ctx, err)
		if err == nil {
			err = e.add(r, t, data)
		}
		if missing || errors.Is(err, errAudio) {
			sum.Skipped = append(sum.Skipped, fmt.Errorf("%s is left out: %w", r.Name(), err))
			continue
		}
		if err != nil {
			return sum, fmt.Errorf("export %s: %w", r.Name(), err)
		}
		sum.Rollouts++
		sum.Tokens.Add(t.Tokens)
		for _, f := range t.Findings {
			sum.Findings = append(sum.Findings, Found{r.Name(), f})
		}
	}
	return sum, e.close()
}

// missing reports whether an error of reading the rollout is one of its own files: others can
// be read.
func (r *Rollout) missing(ctx context.Context, err error) bool {
	var broken *trajectory.TranscriptError
	return ctx.Err() == nil && (!r.OfSystem() || errors.Is(err, ErrNoTranscript) || errors.Is(err, trajectory.ErrNoCalls) || errors.As(err, &broken))
}

// errAudio leaves a rollout out of a format that cannot have it.
var errAudio = errors.New("the trajectory has audio, which needs ATIF 1.8")

// exporter writes one format.
type exporter struct {
	add   func(r *Rollout, t *trajectory.Rollout, transcript []byte) error
	close func() error
}

func open(w io.Writer, format string, o *trajectory.Options, sum *Summary) (exporter, error) {
	sum.Counted = !strings.HasPrefix(format, "atif")
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	rows := func(put func(*trajectory.Row) error) func(*Rollout, *trajectory.Rollout, []byte) error {
		return func(_ *Rollout, t *trajectory.Rollout, _ []byte) error {
			for row := range t.Rows() {
				if err := put(row); err != nil {
					return err
				}
				sum.Rows++
				sum.Positions += len(row.InputIDs)
			}
			return nil
		}
	}
	nothing := func() error { return nil }
	files := func(t *table.Writer, err error) (exporter, error) {
		if err != nil {
			return exporter{}, err
		}
		return exporter{rows(t.Add), t.Close}, nil
	}
	switch format {
	case "jsonl":
		return exporter{rows(func(row *trajectory.Row) error { return lines.Encode(row) }), nothing}, nil
	case "parquet":
		return files(table.Parquet(w))
	case "arrow":
		return files(table.Arrow(w))
	case "atif", "atif-1.7":
		return exporter{func(r *Rollout, t *trajectory.Rollout, transcript []byte) error {
			result := r.Result
			if result == nil {
				result = &schema.Result{ID: t.ID, Attempt: t.Attempt}
			}
			a, err := trajectory.Convert(bytes.NewReader(transcript), result)
			if err != nil {
				return err
			}
			if format == "atif-1.7" && !a.As17() {
				return errAudio
			}
			return lines.Encode(a)
		}, nothing}, nil
	case "openenv":
		o.Messages = true
		return exporter{func(r *Rollout, t *trajectory.Rollout, _ []byte) error {
			return lines.Encode(trajectory.ToOpenEnv(t, r.Result))
		}, nothing}, nil
	case "verifiers":
		o.Messages, o.Merge = true, trajectory.MergeClean
		return exporter{func(r *Rollout, t *trajectory.Rollout, _ []byte) error {
			return lines.Encode(trajectory.ToVerifiers(t, r.Result))
		}, nothing}, nil
	default:
		return exporter{}, &schema.InvalidError{Field: "format", Value: format, Want: fmt.Sprintf("want one of %q", Formats())}
	}
}
