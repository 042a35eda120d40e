package rollout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// verify determines a step's reward. The agent has ended. Only now the verifier's
// files are copied in, after the files at their place and at the reward's place are
// removed.
func (r *Rollout) verify(ctx context.Context, s *step) (err error) {
	sb := r.sandbox
	if s.separate() {
		defer func() {
			if cerr := r.closeSecond(ctx); err == nil {
				err = cerr
			}
		}()
		if sb, err = r.separateSandbox(ctx, s); err != nil {
			return err
		}
	}
	v := s.Verify
	return r.phase(ctx, s.phase("verify"), 0, func(ctx context.Context, p *record.Phase) error {
		network, allow := r.Request.VerifyNetwork(v)
		if err := r.setNetwork(ctx, sb, p.Name, network, allow); err != nil {
			return err
		}
		files := sb.Files()
		for _, stale := range s.stale() {
			if err := files.Empty(ctx, stale, 0o755, v.User); err != nil {
				return err
			}
		}
		// Processes of another user that the agent left must not write a reward.
		mode, owner := fs.FileMode(0o777), "root"
		if s.result.Separation == schema.SeparationOtherUser {
			mode, owner = 0o755, r.userOf(v.User)
		}
		if err := files.Empty(ctx, tasks.VerifierDir, mode, owner); err != nil {
			return err
		}
		for _, from := range s.testFolders() {
			if err := r.put(ctx, sb, from, "/tests", v.User); err != nil {
				return err
			}
		}
		if err := r.guardVerifier(ctx, s, "before the verifier started"); err != nil {
			return err
		}
		if v.By == schema.VerifyByTrainer {
			return r.askTrainer(ctx, p, s, sb)
		}
		args := shell(v.Run)
		if v.Run == "" {
			content, _ := r.bundle.Read(s.script)
			var err error
			if args, err = r.script(ctx, sb, "/tests/test.sh", content, v.User); err != nil {
				return err
			}
		}
		exit, err := r.command(ctx, sb, p, sandboxes.Cmd{Args: args, Env: v.Env, User: v.User, Timeout: ms(s.VerifyMS)})
		if err != nil {
			return err
		}
		switch { // what such a verifier leaves is not its last word
		case exit.TimedOut:
			return ends.Fail(schema.Faultf("verify", schema.CodeTimeout, schema.WhoTask, "the verifier did not end within %d ms: %s", s.VerifyMS, schema.Clip(p.Tail(), 2000)))
		case exit.Disk:
			return ends.Fail(schema.Faultf("verify", schema.CodeDisk, schema.WhoTask, "the verifier wrote more than the sandbox may hold: %s", schema.Clip(p.Tail(), 2000)))
		}
		if err := r.guardVerifier(ctx, s, "while the verifier ran"); err != nil {
			return err
		}
		err = r.reward(ctx, files, s)
		if errors.Is(err, sandboxes.ErrLost) {
			return err
		}
		if err != nil {
			return ends.Fail(schema.Faultf("verify", schema.CodeNoReward, schema.WhoTask, "%v; the verifier ended with %s: %s", err, exit, schema.Clip(p.Tail(), 2000)))
		}
		return nil
	})
}

// clear empties a folder. The folder may itself be a mount, which cannot be
// removed.
func clear(ctx context.Context, files sandboxes.Files, dir string) error {
	if err := files.Remove(ctx, dir); err == nil {
		return nil
	}
	return files.Empty(ctx, dir, 0o755, "")
}

// noteHeadless notes that no reward of several is the headline. at is the part of
// the rollout that has the rewards.
func (r *Rollout) noteHeadless(at string, all map[string]float64) {
	r.Record.Note("%s: the reward is null, since none of the rewards %s is the headline: name it reward, or name it in verify.reward_key (task.toml: turngate.reward_key)",
		at, schema.Clip(strings.Join(slices.Sorted(maps.Keys(all)), ", "), 200))
}

// reward reads the verifier's reward files. An unreadable reward is an error,
// never a reward of 0.
func (r *Rollout) reward(ctx context.Context, files sandboxes.Files, s *step) error {
	data, err := files.Read(ctx, tasks.RewardJSON, tasks.MaxReward)
	if err == nil {
		headline, all, err := tasks.ParseRewardJSON(data, s.Verify.RewardKey)
		s.result.Rewards, s.verified = all, all != nil
		if err != nil {
			return err
		}
		s.result.Reward = headline
		if headline == nil {
			r.noteHeadless(s.phase("verify"), all)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read reward.json: %w", err)
	}
	data, err = files.Read(ctx, tasks.RewardText, tasks.MaxReward)
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
	s.result.Reward, s.result.Rewards, s.verified = &n, map[string]float64{"reward": n}, true
	return nil
}
