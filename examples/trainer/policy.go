package main

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// policy is a model with one parameter: the log-odds of the command that solves
// the task. Its vocabulary has three tokens, one for each answer.
type policy struct {
	mu      sync.Mutex
	odds    float64
	version int
	samples map[string]trainer.Sample // by generation
}

// The tokens.
const (
	tokenGood = iota + 1
	tokenBad
	tokenDone
)

// answer samples an answer, and keeps it with its ids and log-probs.
func (p *policy) answer(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
	last, err := trainer.ParseMessage(c.Messages[len(c.Messages)-1])
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := trainer.Sample{PromptIDs: []int32{0}, Version: strconv.Itoa(p.version)}
	if last.Role == "tool" {
		s.CompletionIDs, s.Logprobs = []int32{tokenDone}, []float32{0}
		p.samples[c.Gen] = s
		return trainer.NewReply(trainer.Message{Content: "Done."}, s)
	}
	text, token, prob := "Hello, world!", int32(tokenGood), p.good()
	if rand.Float64() >= prob { //nolint:gosec // a sample, no secret
		text, token, prob = "Good night!", tokenBad, 1-prob
	}
	s.CompletionIDs, s.Logprobs = []int32{token}, []float32{float32(math.Log(prob))}
	p.samples[c.Gen] = s
	arguments, err := json.Marshal(map[string]string{"command": "echo '" + text + "' > hello.txt"})
	if err != nil {
		return nil, err
	}
	return trainer.NewReply(trainer.Message{ToolCalls: []trainer.ToolUse{{ID: "call_1", Name: "bash", Arguments: string(arguments)}}}, s)
}

// good is the probability of the right command.
func (p *policy) good() float64 { return 1 / (1 + math.Exp(-p.odds)) }

// train takes one policy-gradient step on the generations that reached an agent,
// with the advantage over the group's mean reward. It forgets all others.
func (p *policy) train(results []schema.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mean, n := 0.0, 0.0
	for _, r := range results {
		if r.Reward != nil { // an unknown reward is no reward of 0
			mean, n = mean+*r.Reward, n+1
		}
	}
	step := 0.0
	for _, r := range results {
		for _, c := range r.Committed {
			s := p.samples[c.Gen]
			if r.Reward == nil || len(s.CompletionIDs) == 0 {
				continue
			}
			advantage := *r.Reward - mean/n
			prob := math.Exp(float64(s.Logprobs[0]))
			switch s.CompletionIDs[0] {
			case tokenGood:
				step += advantage * (1 - prob)
			case tokenBad:
				step -= advantage * (1 - prob)
			}
		}
	}
	p.odds += 2 * step
	p.version++
	clear(p.samples)
}
