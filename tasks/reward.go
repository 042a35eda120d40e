package tasks

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Where a verifier leaves its reward. The JSON form wins.
const (
	RewardJSON  = "/logs/verifier/reward.json"
	RewardText  = "/logs/verifier/reward.txt"
	MaxReward   = 1 << 20 // bytes of either file that are read
	VerifierDir = "/logs/verifier"
)

// ParseRewardJSON reads an object of finite numbers. The headline is the key
// asked for, else "reward", else the only one there is.
func ParseRewardJSON(data []byte, key string) (headline float64, all map[string]float64, err error) {
	var raw map[string]any
	if err := json.Unmarshal(data, &raw); err != nil {
		return 0, nil, fmt.Errorf("reward.json is not an object of numbers: %w", err)
	}
	all = make(map[string]float64, len(raw))
	for k, v := range raw {
		n, ok := v.(float64)
		if !ok {
			return 0, nil, fmt.Errorf("reward.json: %q is not a number", k)
		}
		all[k] = n
	}
	switch {
	case len(all) == 0:
		return 0, nil, errors.New("reward.json is empty")
	case key != "":
	case hasKey(all, "reward"):
		key = "reward"
	case len(all) == 1:
		key = slices.Collect(maps.Keys(all))[0]
	default:
		return 0, all, fmt.Errorf(`reward.json has %d numbers and none is called "reward": say which one with verify.reward_key`, len(all))
	}
	if !hasKey(all, key) {
		return 0, all, fmt.Errorf("reward.json has no %q", key)
	}
	return all[key], all, nil
}

func hasKey(m map[string]float64, k string) bool {
	_, ok := m[k]
	return ok
}

// ParseRewardText reads one finite number.
func ParseRewardText(data []byte) (float64, error) {
	text := strings.TrimSpace(string(data))
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		if len(text) > 80 {
			text = text[:80] + "…"
		}
		return 0, fmt.Errorf("reward.txt holds %q, which is not a number", text)
	}
	return n, nil
}
