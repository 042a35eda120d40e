package worker_test

import (
	"context"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/schema"
)

// A verifier that was killed gives no reward, even if it has left one.
func TestAVerifierThatTimesOutGivesNoReward(t *testing.T) {
	t.Parallel()
	slow := func(ctx context.Context, p *dummy.Proc) int {
		reward("1")(ctx, p)
		<-ctx.Done()
		return 1
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": slow}, map[string]dummy.Program{"agent": exits(0)}))
	r := request("alpha-slow")
	r.Limits.VerifyMS = 100
	res := b.result(t, r)
	if res.Reward != nil || res.Status != schema.StatusFailed || res.Fault == nil || res.Fault.Code != schema.CodeTimeout || res.Fault.Who != schema.WhoTask || res.Attempt != 1 {
		t.Fatalf("got %+v, fault %v", res, res.Fault)
	}
}

// Rewards of which none is the headline are kept. The reward is null with a note,
// not with a fault, unless the task names a headline that is not there.
func TestRewardsWithoutAHeadlineAreKept(t *testing.T) {
	t.Parallel()
	several := func(_ context.Context, p *dummy.Proc) int {
		if err := p.Files.WriteFile("logs/verifier/reward.json", []byte(`{"speed": 0.5, "style": 1}`), 0o644); err != nil {
			return 1
		}
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": several}, map[string]dummy.Program{"agent": exits(0)}))
	res := b.result(t, request("alpha-several"))
	if res.Reward != nil || res.Fault != nil || res.Status != schema.StatusDone || res.Rewards["speed"] != 0.5 || res.Rewards["style"] != 1 {
		t.Errorf("got %+v, fault %v", res, res.Fault)
	}
	if len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "the reward is null, since none of the rewards speed, style is the headline") {
		t.Errorf("notes %q", res.Notes)
	}
	named := request("alpha-named")
	named.Verify.RewardKey = "safety"
	if res := b.result(t, named); res.Reward != nil || res.Fault == nil || res.Fault.Code != schema.CodeNoReward || res.Rewards["speed"] != 0.5 {
		t.Errorf("with a key that is not there: got %+v, fault %v", res, res.Fault)
	}
}
