package schema

import (
	"fmt"
	"math"
)

// Verdict is the trainer's answer to a Verification. It becomes the step's
// result, or the rollout's if there are no steps.
type Verdict struct {
	V      int      `json:"v"`
	Reward *float64 `json:"reward"` // null: not known, which is not 0
	// Rewards are the parts of the reward. The reward itself is added under
	// verify.reward_key, or "reward", unless the name is taken.
	Rewards  SortedMap[float64] `json:"rewards,omitempty"`
	Metrics  SortedMap[float64] `json:"metrics,omitempty"`
	Messages []string           `json:"messages,omitempty"` // notes of the result, for people
}

// Bounds of a Verdict.
const (
	maxMetrics     = 256
	maxMessageText = 1000
)

func (v *Verdict) check() error {
	if v.Reward != nil {
		if err := checkNumber("reward", *v.Reward); err != nil {
			return err
		}
	}
	if v.Reward == nil && len(v.Rewards) > 0 {
		return invalid("reward", "null", "a number, since there are rewards")
	}
	if err := checkNumbers("rewards", v.Rewards); err != nil {
		return err
	}
	if err := checkNumbers("metrics", v.Metrics); err != nil {
		return err
	}
	if err := checkCount("messages", len(v.Messages), MaxNotes); err != nil {
		return err
	}
	return checkTextList("messages", v.Messages, maxMessageText)
}

func checkNumbers(field string, all SortedMap[float64]) error {
	if err := checkCount(field, len(all), maxMetrics); err != nil {
		return err
	}
	for name, n := range all {
		if err := checkName(field, name); err != nil {
			return err
		}
		if err := checkNumber(fmt.Sprintf("%s[%s]", field, name), n); err != nil {
			return err
		}
	}
	return nil
}

func checkNumber(field string, n float64) error {
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return invalid(field, n, "want a finite number")
	}
	return nil
}
