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

	"github.com/turngate/turngate/schema"
)

// Files in which a verifier leaves its reward. The JSON file takes precedence.
const (
	RewardJSON  = "/logs/verifier/reward.json"
	RewardText  = "/logs/verifier/reward.txt"
	MaxReward   = 1 << 20 // most bytes that are read of either file
	VerifierDir = "/logs/verifier"
)

// ParseRewardJSON reads an object of finite numbers, where true counts as 1 and false as 0. The
// headline is the one that Headline returns; it is nil if no number is the headline.
func ParseRewardJSON(data []byte, key string) (headline *float64, all map[string]float64, err error) {
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		return nil, nil, fmt.Errorf("reward.json is not an object of numbers: %w", err)
	}
	raw, ok := value.(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("reward.json is not an object of numbers: %s", schema.Clip(string(data), 100))
	}
	all = make(map[string]float64, len(raw))
	for k, v := range raw {
		switch v := v.(type) {
		case float64:
			all[k] = v
		case bool:
			all[k] = 0
			if v {
				all[k] = 1
			}
		default:
			return nil, nil, fmt.Errorf("reward.json: %q is not a number", k)
		}
	}
	if len(all) == 0 {
		return nil, nil, errors.New("reward.json is empty")
	}
	headline, err = Headline(all, key)
	return headline, all, err
}

// Headline returns one of several rewards: the one of the given key, else the
// one named "reward", else the only one. It is nil if no key is given and none
// of these exists. A given key without a reward is an error.
func Headline(all map[string]float64, key string) (*float64, error) {
	switch {
	case key != "":
	case hasKey(all, "reward"):
		key = "reward"
	case len(all) == 1:
		key = slices.Collect(maps.Keys(all))[0]
	default:
		return nil, nil
	}
	n, ok := all[key]
	if !ok {
		return nil, fmt.Errorf("reward.json has no number %q", key)
	}
	return &n, nil
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
		return 0, fmt.Errorf("reward.txt has %q, which is not a number", text)
	}
	return n, nil
}
