package main

import (
	"errors"
	"math"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/schema"
)

// limitFlags bound the spending of a job.
type limitFlags struct {
	maxCost        float64
	maxTokensTotal int64
}

func (f *limitFlags) add(fl *pflag.FlagSet) {
	fl.Float64Var(&f.maxCost, "max-cost", 0, "largest cost of the job in USD: above it no rollout begins; needs prices in the file of upstreams (0: none)")
	fl.Int64Var(&f.maxTokensTotal, "max-tokens-total", 0, "largest number of prompt and completion tokens of the job: above it no rollout begins (0: none)")
}

// check returns all errors in these flags of a run.
func (f *limitFlags) check(run *runFlags) error {
	wrong := []error{atLeast("max-cost", f.maxCost, 0), atLeast("max-tokens-total", f.maxTokensTotal, 0)}
	if math.IsNaN(f.maxCost) || math.IsInf(f.maxCost, 0) {
		wrong = append(wrong, usage("--max-cost: %v is not valid: want USD, such as 2.50", f.maxCost))
	}
	mode := schema.Mode(run.mode)
	if mode == schema.ModeBlack && (f.maxCost > 0 || f.maxTokensTotal > 0) {
		wrong = append(wrong, usage("--max-cost, --max-tokens-total: the calls of --mode %s are not counted", mode))
	}
	if f.maxCost > 0 && mode == schema.ModeGate && (run.upstreams == "" || len(run.model) == 0) {
		wrong = append(wrong, usage("--max-cost: want --upstreams, a file with the prices of the models that --model names"))
	}
	if f.maxCost > 0 && run.upstreams != "" {
		file, err := readUpstreams(run.upstreams)
		wrong = append(wrong, err)
		for _, name := range run.model {
			if c, ok := file[name]; ok && c.Price == nil {
				wrong = append(wrong, usage("--max-cost: the upstream %s has no price in %s", name, run.upstreams))
			}
		}
	}
	return errors.Join(wrong...)
}

// given names the limits that were set.
func (f *limitFlags) given() string { return givenLimits(f.maxCost > 0, f.maxTokensTotal > 0) }

func givenLimits(cost, tokens bool) string {
	text := ""
	if cost {
		text += " --max-cost USD"
	}
	if tokens {
		text += " --max-tokens-total N"
	}
	return text
}
