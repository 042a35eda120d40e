package schema

// Verification asks the trainer for the reward of a step, after the agent has
// ended. Until the trainer answers with a Verdict, it may send Operations on the
// sandbox. Its key has the form of a model call's key; the number is that of the
// step.
type Verification struct {
	V           int               `json:"v"`
	Key         string            `json:"key"`
	Task        string            `json:"task,omitempty"`        // the request's task.name
	Bundle      string            `json:"bundle,omitempty"`      // the request's task.bundle
	Step        string            `json:"step,omitempty"`        // empty: the request has no steps
	Instruction string            `json:"instruction,omitempty"` // of the step
	Group       string            `json:"group,omitempty"`
	Index       int               `json:"index,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Workdir     string            `json:"workdir"`         // working directory of the sandbox
	Exit        *Exit             `json:"exit,omitempty"`  // of the agent
	Fault       *Fault            `json:"fault,omitempty"` // of the agent
	LimitMS     int64             `json:"limit_ms"`        // time limit of the verification
}

func (v *Verification) check() error {
	if _, err := ParseKey(v.Key); err != nil {
		return err
	}
	for _, t := range []struct {
		field, value string
		limit        int
	}{
		{"task", v.Task, maxName}, {"step", v.Step, maxName}, {"instruction", v.Instruction, maxInstruction}, {"group", v.Group, maxName}, {"workdir", v.Workdir, maxPath},
	} {
		if err := checkText(t.field, t.value, t.limit); err != nil {
			return err
		}
	}
	if v.Bundle != "" {
		if err := CheckSHA256("bundle", v.Bundle); err != nil {
			return err
		}
	}
	if v.Fault != nil {
		if err := v.Fault.check(); err != nil {
			return err
		}
	}
	if err := checkEnvLike("labels", v.Labels, maxLabels); err != nil {
		return err
	}
	if err := checkRange("index", v.Index, 0, 1<<30); err != nil {
		return err
	}
	return checkRange("limit_ms", v.LimitMS, 0, maxDurationMS)
}
