package console

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// Bus is the Source of a running system.
type Bus struct {
	System *recorded.System
	URL    string // of the server
	Creds  string // the file of the connection's credentials, for commands
	// Trainer is the trainer of the rollouts. Empty: all trainers; the connection then needs
	// the rights of an operator.
	Trainer string
	// Events has the rights of an operator, to hear the calls of a trainer's rollouts.
	// Nil: System is asked.
	Events *recorded.System
}

// Name implements Source.
func (b *Bus) Name() string {
	if b.Trainer == "" {
		return "all trainers of " + b.URL
	}
	return "trainer " + b.Trainer + " of " + b.URL
}

// Flags implements Source. The file of a trainer's credentials is the one of this connection,
// or lies beside it.
func (b *Bus) Flags(trainer string) string {
	creds := b.Creds
	if b.Trainer == "" {
		creds = filepath.Join(filepath.Dir(creds), "trainer-"+trainer+".nk")
	}
	if abs, err := filepath.Abs(creds); err == nil {
		creds = abs
	}
	if _, err := os.Stat(creds); b.Creds == "" || err != nil {
		creds = "trainer-" + trainer + ".nk"
	}
	return "--nats " + plain.Word(b.URL) + " --creds " + plain.Word(creds)
}

// Follow implements Source.
func (b *Bus) Follow(ctx context.Context, show func(*recorded.Rollout), trouble func(error)) {
	if b.Trainer == "" {
		b.System.FollowAll(ctx, true, show, trouble)
		return
	}
	b.System.Follow(ctx, b.Trainer, true, show, trouble)
}

// Files implements Source.
func (b *Bus) Files() error {
	if b.Trainer == "" {
		return errors.New("the conversation and the files are for the trainer")
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
	return b.System.Rollout(ctx, id, true)
}

// Listen implements Live.
func (b *Bus) Listen(ctx context.Context, id schema.ID, to recorded.Listener) error {
	switch {
	case b.Events != nil:
		return b.Events.Listen(ctx, id, to)
	case b.Trainer == "":
		return b.System.Listen(ctx, id, to)
	default:
		return b.System.ListenAs(ctx, id, to)
	}
}

// Unheard implements Live.
func (b *Bus) Unheard() string {
	if b.Trainer == "" || b.Events != nil {
		return ""
	}
	return "With a trainer's credentials this page hears phases, waits, and the calls that the trainer answers, from its first visit on. Output, and calls that an upstream of the worker answers, are shown live to an operator, and here after the end."
}
