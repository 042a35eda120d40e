package verify

import (
	"context"

	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/record"
)

// apart makes the second sandbox and restores the artifacts into it.
func (v *verifier) apart(ctx context.Context) (*place.Box, error) {
	box, err := v.Place.OpenVerifier(ctx, v.Step)
	if err != nil {
		return nil, err
	}
	err = v.Place.Stages.Run(ctx, v.Step.Phase("verify-upload"), v.Place.Request.Limits.SetupMS, func(ctx context.Context, _ *record.Phase) error {
		for _, k := range v.Kept {
			if err := k.Restore(ctx, box, v.Step.Verify.User); err != nil {
				return err
			}
			k.Close() // frees the disk while the verifier runs
		}
		return nil
	})
	return box, err
}
