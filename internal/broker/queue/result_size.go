package queue

import (
	"github.com/turngate/turngate/schema"
)

// Sizes in bytes to which the outputs of a result's phases are cut, one after
// the other, until the result fits into the server's payload limit.
func outputSizes() []int { return []int{4 << 10, 1 << 10, 128, 0} }

// fitted returns the result in a size that the server accepts. If needed it cuts
// the outputs of phases and adds a note. If the result is still too large, it
// returns a failed result instead: the other fields are training data, and a part
// of them would look complete.
func (w *writes) fitted(r schema.Result) (schema.Result, error) {
	err := w.fits(&r)
	if err == nil {
		return r, nil
	}
	phases, notes := r.Phases, r.Notes
	outputs := 0
	for _, p := range phases {
		outputs = max(outputs, len(p.Output))
	}
	for _, size := range outputSizes() {
		if size >= outputs {
			continue
		}
		r.Phases = make([]schema.Phase, len(phases))
		for i, p := range phases {
			p.Output = tailOf(p.Output, size)
			r.Phases[i] = p
		}
		r.Notes = append(notes[:len(notes):len(notes)], "outputs of phases were cut: the result was larger than a message may be")
		if err = w.fits(&r); err == nil {
			return r, nil
		}
	}
	small := schema.Result{
		V: r.V, ID: r.ID, Trainer: r.Trainer, Group: r.Group, Index: r.Index, Task: r.Task, Attempt: r.Attempt, Status: schema.StatusFailed,
		Worker: r.Worker, Agent: r.Agent, AgentVersion: r.AgentVersion, Labels: r.Labels,
		Fault: schema.Faultf("worker", schema.CodeTooLarge, schema.WhoAgent, "the result is too large to be stored: %v", err),
	}
	return small, w.fits(&small)
}

// fits checks that the server accepts the result, and that readers can decode
// it: the number of values in a message is bounded too.
func (w *writes) fits(r *schema.Result) error {
	data, err := schema.Encode(r)
	if err != nil {
		return err
	}
	if err := w.broker.CheckSize("the result of "+string(r.ID), len(data)); err != nil || len(data) < surelyRead {
		return err
	}
	var back schema.Result
	return schema.Decode(data, &back)
}

// surelyRead is a size in bytes. A smaller result cannot have too many values.
const surelyRead = 512 << 10

func tailOf(s string, size int) string {
	if len(s) <= size {
		return s
	}
	return schema.Clip(s[len(s)-size:], size)
}
