package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// hereTime is the time for which Workspace waits for a machine, which has an announcement
// every 2 s.
const hereTime = 15 * time.Second

// Workspace makes a sandbox on the only machine of h.Machines. Its working directory is the
// folder that the machine's owner gives to people. It waits a few seconds for the machine,
// and not for a free slot.
func Workspace(ctx context.Context, h sandboxes.Host, s sandboxes.Spec) (*Sandbox, error) {
	b, err := newBackend(h, schema.CanWorkspace)
	if err != nil {
		return nil, err
	}
	m, err := Here(ctx, b.fleet, b.names[0], b.want)
	if err == nil {
		var sb *Sandbox
		if sb, err = b.createOn(ctx, m, s); err == nil {
			return sb, nil
		}
	}
	var no *sandboxes.UnsupportedError
	if errors.As(err, &no) {
		err = errors.New(no.Reason)
	}
	return nil, err
}

// Here waits a few seconds for a machine with one of the capabilities for people.
func Here(ctx context.Context, fleet sandboxes.Fleet, name, want string) (m *schema.Machine, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, hereTime, fmt.Errorf("the machine %s is not there: start it with turngate machine serve", name))
	defer cancel()
	err = fleet.Await(limited, func(all []schema.Machine) bool {
		if i := slices.IndexFunc(all, func(m schema.Machine) bool { return m.Machine == name }); i >= 0 {
			m = &all[i]
		}
		return m != nil
	})
	if err != nil {
		return nil, err
	}
	if reason, lacks := m.Missing[want]; lacks {
		return nil, fmt.Errorf("on the machine %s: %s", name, plain.Line(reason, far.MaxSays))
	}
	if m.Protocol != schema.LineProtocol { // a person's work needs no program of ours there
		return nil, fmt.Errorf("on the machine %s: it has the protocol %d of lines, want %d; install turngate of one version there and here", name, m.Protocol, schema.LineProtocol)
	}
	if m.Draining {
		return nil, fmt.Errorf("the machine %s ends, and takes no more work", name)
	}
	return m, nil
}
