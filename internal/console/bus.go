package console

import (
	"context"
	"errors"
	"fmt"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// Bus is the Source of a running system.
type Bus struct {
	System *recorded.System
	URL    string // of the server
	// Trainer is the trainer whose rollouts are shown. Empty: all trainers, for which
	// the connection needs the rights of an operator.
	Trainer string
}

// Name implements Source.
func (b *Bus) Name() string {
	if b.Trainer == "" {
		return "all trainers of " + b.URL
	}
	return "trainer " + b.Trainer + " of " + b.URL
}

// Flags implements Source.
func (b *Bus) Flags() string { return "--nats " + plain.Word(b.URL) + " --creds FILE" }

// Follow implements Source.
func (b *Bus) Follow(ctx context.Context, show func(*recorded.Rollout), trouble func(error)) {
	if b.Trainer == "" {
		b.System.FollowAll(ctx, false, show, trouble)
		return
	}
	b.System.Follow(ctx, b.Trainer, true, show, trouble)
}

// Files implements Source.
func (b *Bus) Files() error {
	if b.Trainer == "" {
		return errors.New("the conversation and the files are for the trainer: start the console with its credentials")
	}
	return nil
}

// Runs implements Source.
func (b *Bus) Runs() *Folder { return nil }

// Rollout implements Source.
func (b *Bus) Rollout(ctx context.Context, id schema.ID) (*recorded.Rollout, error) {
	if b.Trainer != "" && id.Trainer() != b.Trainer {
		return nil, fmt.Errorf("%s: %w", id, recorded.ErrNotFound)
	}
	return b.System.Rollout(ctx, id, b.Trainer != "")
}
