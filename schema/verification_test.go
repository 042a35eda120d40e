package schema_test

import (
	"math"
	"testing"

	"github.com/turngate/turngate/schema"
)

// A sandbox lives as long as its rollout may wait for a trainer that verifies.
func TestASandboxWaitsForATrainerThatVerifies(t *testing.T) {
	r := schema.Request{Gate: schema.GateOptions{WaitMS: 7_000}, Verify: &schema.Verify{}}
	without := r.LifeMS()
	r.Verify.By = schema.VerifyByTrainer
	if got := r.LifeMS() - without; got != 7_000 {
		t.Errorf("%d ms more, want 7000", got)
	}
	r.Steps = []schema.Step{{Verify: r.Verify}, {}, {Verify: r.Verify}}
	steps := r.LifeMS()
	r.Gate.WaitMS = 0
	if got := steps - r.LifeMS(); got != 14_000 {
		t.Errorf("%d ms more with steps, want 14000", got)
	}
}

func TestInvalidVerdictsAndOperations(t *testing.T) {
	nan, inf, one := math.NaN(), math.Inf(1), 1.0
	for name, m := range map[string]schema.Message{
		"a reward that is no number":   &schema.Verdict{Reward: &nan},
		"an infinite metric":           &schema.Verdict{Metrics: map[string]float64{"a": inf}},
		"rewards without the reward":   &schema.Verdict{Rewards: map[string]float64{"a": 1}},
		"a reward without a name":      &schema.Verdict{Reward: &one, Rewards: map[string]float64{"": 1}},
		"a result's reward":            &schema.Result{ID: "alpha-1", Status: schema.StatusDone, Reward: &nan},
		"a result's rewards":           &schema.Result{ID: "alpha-1", Status: schema.StatusDone, Reward: &one, Rewards: map[string]float64{"a": inf}},
		"a result's metric":            &schema.Result{ID: "alpha-1", Status: schema.StatusDone, Metrics: map[string]float64{"a": nan}},
		"the reward of a step":         &schema.Result{ID: "alpha-1", Status: schema.StatusDone, Steps: []schema.StepResult{{Name: "one", Reward: &inf}}},
		"a cost that is no number":     &schema.Result{ID: "alpha-1", Status: schema.StatusDone, Calls: map[string]schema.CallStats{"agent": {CostUSD: &nan}}},
		"no such action":               &schema.Operation{Do: "delete", Path: "x"},
		"no command":                   &schema.Operation{Do: schema.DoExec},
		"no program":                   &schema.Operation{Do: schema.DoExec, Args: []string{""}},
		"NUL in the argv":              &schema.Operation{Do: schema.DoExec, Args: []string{"a", "b\x00c"}},
		"a command of a read":          &schema.Operation{Do: schema.DoRead, Path: "x", Run: "true"},
		"no path":                      &schema.Operation{Do: schema.DoWrite},
		"NUL in the path":              &schema.Operation{Do: schema.DoRead, Path: "x\x00y"},
		"an option in place of a user": &schema.Operation{Do: schema.DoList, User: "-x"},
		"setuid":                       &schema.Operation{Do: schema.DoWrite, Path: "x", Mode: 0o4755},
		"a variable that is none":      &schema.Operation{Do: schema.DoExec, Run: "true", Env: map[string]string{"A=B": "1"}},
		"too much data":                &schema.Operation{Do: schema.DoWrite, Path: "x", Data: make([]byte, schema.MaxOperationData+1)},
	} {
		if err := schema.Validate(m); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
