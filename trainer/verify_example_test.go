package trainer_test

import (
	"context"
	"errors"
	"io/fs"
	"log"
	"time"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// A verifier is a function of the sandbox and the task: it runs the tests, and looks
// at the file that the agent was asked for.
func ExampleVerifier() {
	verify := func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
		reward := 0.0
		switch answer, err := h.Read(ctx, "answer.txt"); {
		case errors.Is(err, fs.ErrNotExist):
			return &schema.Verdict{Reward: &reward, Messages: []string{"there is no answer to " + h.Instruction}}, nil
		case err != nil:
			return nil, err
		case len(answer) > 0:
			reward = 0.5
		}
		tests, err := h.Exec(ctx, trainer.Command{Args: []string{"bash", "/tests/test.sh"}, Timeout: time.Minute})
		if err != nil {
			return nil, err
		}
		if tests.Exit.OK() {
			reward = 1
		}
		return &schema.Verdict{Reward: &reward, Metrics: map[string]float64{"test_ms": float64(tests.Exit.MS)}}, nil
	}
	ctx := context.Background()
	t, err := trainer.Dial(ctx, trainer.Config{URL: "nats://127.0.0.1:4222", Creds: "alpha.creds", Name: "alpha", Verify: verify})
	if err != nil {
		log.Print(err)
		return
	}
	defer t.Close()
	err = t.Submit(ctx, []schema.Request{{
		ID: "alpha-1", Trainer: "alpha", Task: schema.Task{Name: "answer", Instruction: "Write the answer to answer.txt."},
		Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "docker", Image: "debian:12"}, Verify: &schema.Verify{By: schema.VerifyByTrainer},
	}})
	if err != nil {
		log.Print(err)
	}
}
