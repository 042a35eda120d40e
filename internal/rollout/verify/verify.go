// Package verify finds the reward of a step: with a script of the task, in the agent's
// sandbox or in a separate one, or by the trainer.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/rollout/collect"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Task has the parts of a step that a verifier gets.
type Task struct {
	Place *place.Place
	Step  *plan.Step
	Left  *Left          // processes of the agent
	Kept  []collect.Kept // artifacts for a separate verifier
	Exit  *schema.Exit   // of the agent
	Fault *schema.Fault  // of the agent
	Ask   Ask
}

// Ask asks the trainer for a verdict. Until the trainer answers, operate runs the
// operations that the trainer sends.
type Ask func(ctx context.Context, v schema.Verification, frames func(schema.Frame) error, operate modelcall.Operate) (schema.Verdict, error)

// Verdict is the outcome of a verification.
type Verdict struct {
	Reward  *float64 // nil: not known
	Rewards map[string]float64
	Known   bool // there are rewards
}

// Run determines a step's reward. The agent has ended. Only now the verifier's
// files are copied in, after the files at their place and at the reward's place are
// removed.
func Run(ctx context.Context, t Task) (verdict Verdict, err error) {
	p, s := t.Place, t.Step
	v := &verifier{Task: t, rec: p.Stages.Record, box: p.Main}
	if s.Apart() {
		defer func() {
			if cerr := p.CloseVerifier(ctx); err == nil {
				err = cerr
			}
		}()
		if v.box, err = v.apart(ctx); err != nil {
			return verdict, err
		}
	}
	err = p.Stages.Run(ctx, s.Phase("verify"), 0, v.run)
	return v.verdict, err
}

// verifier is a running verification.
type verifier struct {
	Task
	rec     *record.Record
	box     *place.Box
	verdict Verdict
}

func (v *verifier) run(ctx context.Context, p *record.Phase) error {
	network, allow := v.Place.Request.VerifyNetwork(v.Step.Verify)
	if err := v.box.Enter(ctx, p.Name, network, allow); err != nil {
		return err
	}
	// Processes that the agent left could fill the folders as fast as they are emptied.
	if err := v.Place.Stages.Within(ctx, p.Name, v.Place.Request.Limits.SetupMS, v.furnish); err != nil {
		return err
	}
	if err := v.Left.guard(ctx, "before the verifier started"); err != nil {
		return err
	}
	if v.Step.Verify.By == schema.VerifyByTrainer {
		return v.askTrainer(ctx, p)
	}
	return v.runScript(ctx, p)
}

// furnish copies the verifier's files in.
func (v *verifier) furnish(ctx context.Context) error {
	s, files := v.Step, v.box.Files()
	if !s.Apart() || !s.Verify.Bundled {
		if err := files.Empty(ctx, "/tests", 0o755, s.Verify.User); err != nil {
			return err
		}
	}
	// Processes of another user that the agent left must not write a reward.
	mode, owner := fs.FileMode(0o777), "root"
	if v.Place.Separation(s) == schema.SeparationOtherUser {
		mode, owner = 0o755, plan.UserOf(v.Place.Request, s.Verify.User)
	}
	if err := files.Empty(ctx, tasks.VerifierDir, mode, owner); err != nil {
		return err
	}
	for _, from := range s.TestFolders() {
		if err := v.Place.Put(ctx, v.box, from, "/tests", s.Verify.User); err != nil {
			return err
		}
	}
	return nil
}

// runScript runs the verifier of the task and reads its reward.
func (v *verifier) runScript(ctx context.Context, p *record.Phase) error {
	s, how := v.Step, v.Step.Verify
	args := place.Shell(how.Run)
	if how.Run == "" {
		var err error
		if args, err = place.Script(ctx, v.Place.Stages.Record, v.box, "/tests/test.sh", v.Place.Bundle.File(s.Script), how.User); err != nil {
			return err
		}
	}
	exit, err := v.Place.Command(ctx, v.box, p, sandboxes.Cmd{Args: args, Env: how.Env, User: how.User, Timeout: stage.MS(s.VerifyMS)})
	if err != nil {
		return err
	}
	switch { // what such a verifier leaves is not its last word
	case exit.TimedOut:
		return ends.Fail(schema.Faultf("verify", schema.CodeTimeout, schema.WhoTask, "the verifier did not end within %d ms: %s", s.VerifyMS, schema.Clip(p.Tail(), 2000)))
	case exit.Disk:
		return ends.Fail(schema.Faultf("verify", schema.CodeDisk, schema.WhoTask, "the verifier wrote more than the sandbox may hold: %s", schema.Clip(p.Tail(), 2000)))
	}
	if err := v.Left.guard(ctx, "while the verifier ran"); err != nil {
		return err
	}
	err = v.reward(ctx)
	if errors.Is(err, sandboxes.ErrLost) {
		return err
	}
	if err != nil {
		return ends.Fail(schema.Faultf("verify", schema.CodeNoReward, schema.WhoTask, "%v; the verifier ended with %s: %s", err, exit, schema.Clip(p.Tail(), 2000)))
	}
	return nil
}

// NoteHeadless notes that no reward of several is the headline. at is the part of
// the rollout that has the rewards.
func NoteHeadless(rec *record.Record, at string, all map[string]float64) {
	rec.Note("%s: the reward is null, since none of the rewards %s is the headline: name it reward, or name it in verify.reward_key (task.toml: turngate.reward_key)",
		at, schema.Clip(strings.Join(slices.Sorted(maps.Keys(all)), ", "), 200))
}

// reward reads the verifier's reward files. An unreadable reward is an error,
// never a reward of 0.
func (v *verifier) reward(ctx context.Context) error {
	files, s := v.box.Files(), v.Step
	data, err := sandboxes.ReadFile(ctx, files, tasks.RewardJSON, tasks.MaxReward)
	if err == nil {
		headline, all, err := tasks.ParseRewardJSON(data, s.Verify.RewardKey)
		v.verdict.Rewards, v.verdict.Known = all, all != nil
		if err != nil {
			return err
		}
		v.verdict.Reward = headline
		if headline == nil {
			NoteHeadless(v.rec, s.Phase("verify"), all)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read reward.json: %w", err)
	}
	data, err = sandboxes.ReadFile(ctx, files, tasks.RewardText, tasks.MaxReward)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("the verifier left neither /logs/verifier/reward.json nor reward.txt")
	}
	if err != nil {
		return fmt.Errorf("read reward.txt: %w", err)
	}
	n, err := tasks.ParseRewardText(data)
	if err != nil {
		return err
	}
	v.verdict = Verdict{Reward: &n, Rewards: map[string]float64{"reward": n}, Known: true}
	return nil
}
