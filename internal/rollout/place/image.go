package place

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// imageFault returns the fault of an image error. The fault names the party
// that can correct it.
func imageFault(e *sandboxes.ImageError) *schema.Fault {
	who := schema.WhoTask
	if e.Code == schema.CodeImageAuth || e.Code == schema.CodeImageRate {
		who = schema.WhoWorker
	}
	f := schema.Faultf("create", cmp.Or(e.Code, schema.CodeImage), who, "sandbox.image: %v", e)
	f.Retryable = e.Code == schema.CodeImageRate
	return f
}

// buildFault makes a build that took too long the task's fault. withinMS is its limit.
func buildFault(ctx context.Context, err error, choice *schema.SandboxChoice, withinMS int64) error {
	var broken *ends.Broken
	builds := choice.Build != nil || slices.ContainsFunc(choice.Services, func(s schema.Service) bool { return s.Build != nil })
	if !builds || ctx.Err() != nil || !errors.As(err, &broken) || broken.Fault.Code != schema.CodeTimeout {
		return err
	}
	return ends.Fail(schema.Faultf(broken.Fault.Stage, schema.CodeTimeout, schema.WhoTask, "the image was not built within %d ms", withinMS))
}
