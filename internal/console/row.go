package console

import (
	"maps"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// Bounds of a row's texts, in characters.
const (
	maxCell  = 200
	maxFault = 500
)

// Row is a rollout in the table.
type Row struct {
	ID      string   `json:"id"`
	Trainer string   `json:"trainer"`
	Group   string   `json:"group,omitempty"`
	Index   int      `json:"index"`
	Task    string   `json:"task,omitempty"`
	Agent   string   `json:"agent,omitempty"`
	Worker  string   `json:"worker,omitempty"`
	Status  string   `json:"status"`
	Reward  *float64 `json:"reward"` // null: not known
	Fault   string   `json:"fault,omitempty"`
	Text    string   `json:"text,omitempty"` // of the fault
	Attempt int      `json:"attempt,omitempty"`
	Calls   int      `json:"calls"`
	Prompt  int64    `json:"prompt"`            // tokens
	Sampled int64    `json:"completion"`        // tokens
	Refused int      `json:"refused,omitempty"` // answers
	Started int64    `json:"started,omitempty"` // Unix ms
	MS      int64    `json:"ms,omitempty"`
	Job     string   `json:"job,omitempty"`
	Trial   string   `json:"trial,omitempty"`
	// Failure is the kind of a result's failure, and Use the default treatment by a trainer;
	// see trainer.FailureOf and trainer.DefaultTreatments.
	Failure string `json:"failure,omitempty"`
	Use     string `json:"use,omitempty"`

	Labels map[string]string `json:"labels,omitempty"`
	// Replaces are earlier rollouts of the same trial, which have no rows any more.
	Replaces []string `json:"replaces,omitempty"`

	seq uint64 // of its message in the queue, while it waits there
}

// rowOf describes a rollout in a row. Its texts come from tasks and agents.
func rowOf(r *recorded.Rollout) Row {
	row := Row{ID: cell(string(r.ID)), Trainer: cell(r.ID.Trainer()), Status: string(recorded.StatusOpen), seq: r.Seq}
	if q := r.Asked; q != nil {
		row.Group, row.Index, row.Task, row.Agent, row.Labels = cell(q.Group), q.Index, cell(q.Task.Name), cell(q.Agent.Name), labels(q.Labels)
	}
	if t := r.Trial; t != nil {
		row.Group, row.Index, row.Task, row.Agent, row.Job, row.Trial = cell(t.Group), t.Index, cell(r.About().Title), cell(t.Agent), jobName(r.Job), cell(t.Name)
		for _, id := range t.Stopped {
			row.Replaces = append(row.Replaces, cell(string(id)))
		}
	}
	var fault *schema.Fault
	if s := r.State; s != nil {
		row.Status, row.Attempt, row.Worker, row.Started, fault = string(s.Status), s.Attempt, cell(s.Worker), s.Since, s.Fault
	}
	if q := r.Result; q != nil {
		row.Group, row.Index, row.Task, row.Agent, row.Worker = cell(q.Group), q.Index, cell(r.About().Title), cell(q.Agent), cell(q.Worker)
		row.Status, row.Reward, row.Attempt, row.Labels, fault = string(q.Status), q.Reward, q.Attempt, labels(q.Labels), q.Fault
		row.Failure, row.Use = string(trainer.FailureOf(q)), string(trainer.DefaultTreatments().Of(q))
		for _, c := range q.Calls {
			row.Calls += c.Count
			row.Prompt += c.PromptTokens
			row.Sampled += c.CompletionTokens
			row.Refused += c.Refused
		}
		if n := len(q.Phases); n > 0 {
			row.Started = q.Phases[0].Start
			for _, p := range q.Phases {
				row.MS = max(row.MS, p.Start+p.MS-row.Started)
			}
		}
	}
	if r.Unread != nil {
		row.Text = plain.Line(r.Unread.Error(), maxFault)
	}
	if fault != nil {
		row.Fault, row.Text = cell(fault.Code), plain.Line(fault.Message, maxFault)
	}
	return row
}

func cell(s string) string { return plain.Line(s, maxCell) }

func labels(of map[string]string) map[string]string {
	out := maps.Clone(of)
	for k, v := range of {
		delete(out, k)
		out[cell(k)] = cell(v)
	}
	return out
}
