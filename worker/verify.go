package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// verify finds the reward. The agent and all that it started is dead by now;
// the verifier's files come in only here, and what lies where they and the
// reward belong is removed first.
func (r *Rollout) verify(ctx context.Context) error {
	v := r.Request.Verify
	return r.phase(ctx, "verify", 0, func(ctx context.Context, p *phase) error {
		files := r.sandbox.Files()
		for _, stale := range []string{"/tests", tasks.VerifierDir} {
			if err := clear(ctx, files, stale); err != nil {
				return err
			}
		}
		if err := files.Mkdir(ctx, tasks.VerifierDir, 0o755, v.User); err != nil {
			return err
		}
		if r.bundle.Has("tests") {
			if err := r.put(ctx, "tests", "/tests", v.User); err != nil {
				return err
			}
		}
		args := shell(v.Run)
		if v.Run == "" {
			script, _ := r.bundle.Read("tests/test.sh")
			args = scriptArgs("/tests/test.sh", script)
		}
		timeout := time.Duration(r.Request.Limits.VerifyMS) * time.Millisecond
		exit, err := r.command(ctx, p, sandboxes.Cmd{Args: args, Env: v.Env, User: v.User, Timeout: timeout})
		if err != nil {
			return err
		}
		if err := r.reward(ctx, files); err != nil {
			return failed(schema.Faultf("verify", schema.CodeNoReward, schema.WhoTask, "%v; the verifier ended with %s: %s", err, exit, schema.Clip(p.tail.String(), 2000)))
		}
		return nil
	})
}

// clear empties a folder that may itself be a mount and cannot be removed.
func clear(ctx context.Context, files sandboxes.Files, dir string) error {
	if err := files.Remove(ctx, dir); err == nil {
		return nil
	}
	list, err := files.List(ctx, dir)
	if err != nil {
		return fmt.Errorf("clear %s: %w", dir, err)
	}
	for _, f := range list {
		if err := files.Remove(ctx, dir+"/"+f.Name); err != nil {
			return fmt.Errorf("clear %s: %w", dir, err)
		}
	}
	return nil
}

// reward reads what the verifier left. A reward that cannot be read is no
// reward, never 0.
func (r *Rollout) reward(ctx context.Context, files sandboxes.Files) error {
	data, err := files.Read(ctx, tasks.RewardJSON, tasks.MaxReward)
	if err == nil {
		headline, all, err := tasks.ParseRewardJSON(data, r.Request.Verify.RewardKey)
		r.result.Rewards = all
		if err != nil {
			return err
		}
		r.result.Reward = &headline
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
	r.result.Reward = &n
	return nil
}
