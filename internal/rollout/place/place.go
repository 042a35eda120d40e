// Package place makes the sandboxes of a rollout, with their users, networks and
// side-cars. A Place closes all of them.
package place

import (
	"context"
	"errors"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout/plan"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

const (
	// Installed is the path of an agent's packages in its sandbox.
	Installed = sandboxes.AgentPath
	// AgentDir is a writable folder for an agent's configuration and state.
	AgentDir = "/tmp/.turngate-agent"
	// AgentLogs is the folder for logs of an agent or of the task's solution.
	AgentLogs = "/logs/agent"
	// Published is the folder in which an agent may leave files for the verifier
	// and for users. It is always kept.
	Published = "/logs/artifacts"
	// StoreGrace is added to the limits of stages that store artifacts. If
	// NATS is out of reach, some time passes before the rollout is suspended: StoreGrace
	// covers it. Suspended time does not count.
	StoreGrace = time.Minute
	// lostAfter is the time after which a sandbox without contact to its worker
	// ends.
	lostAfter = 300 * time.Second
)

// Config describes the sandboxes of a rollout.
type Config struct {
	Request   *schema.Request
	Attempt   int
	Owner     string // marks the sandboxes on their host
	Backends  []sandboxes.Backend
	Caps      Caps
	Prices    map[string]float64 // of a sandbox, in USD per hour, by backend
	Agent     agents.Spec
	Cache     agents.Cache
	Bundle    *tasks.Bundle
	Steps     []*plan.Step
	Snapshots *Snapshots // shared by the rollouts of a worker; nil: none are made
	Stages    *stage.Stages
	Suspended func() (suspended bool, changed <-chan struct{}) // nil: never
	Reach     *reach.Host                                      // serves the sandboxes to commands; nil: none does
	KeepFor   time.Duration                                    // the time for which Keep keeps a sandbox; 0: none is kept
}

// Place has the sandboxes of one rollout.
type Place struct {
	Config
	// Main is the agent's sandbox. It is nil before Open, and from the separate verifier
	// of the last step on.
	Main *Box

	second     *Box    // sandbox of a separate verifier while it runs, and after the last step if it may be kept
	lastVerify bool    // second is that of the last step
	share      *share  // nil: this rollout has no part in a snapshot
	spared     bool    // Spare was called, so KillAll leaves the main container's own command running
	survey     *survey // nil before Survey
}

// New returns a place without sandboxes.
func New(c Config) *Place { return &Place{Config: c} }

// Open makes the agent's sandbox, starts its services and prepares it for the first
// step. The caller calls Close, also after an error.
func (p *Place) Open(ctx context.Context) error {
	q := p.Request
	if err := p.joinGroup(ctx); err != nil {
		return err
	}
	if err := p.Stages.Run(ctx, "create", q.Limits.InstallMS+q.Limits.ReadyMS, p.create); err != nil {
		return buildFault(ctx, err, &q.Sandbox, q.Limits.InstallMS)
	}
	p.leaveGroup()
	if err := p.Main.startServices(ctx, &q.Sandbox, nil); err != nil {
		return errors.Join(err, p.KeepServiceFiles(ctx))
	}
	if p.share.beginning() != nil { // its setup has run
		return nil
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	return p.shareSetup(ctx)
}

// Close closes all sandboxes, even after the context has ended.
func (p *Place) Close(ctx context.Context) {
	for _, b := range []*Box{p.second, p.Main} {
		if b != nil {
			b.shut(ctx)
		}
	}
	p.second, p.Main = nil, nil
	if p.share != nil {
		p.share.leave()
		p.share = nil
	}
}

// Service returns the sandbox of the service with this name.
func (p *Place) Service(name string) (sandboxes.Sandbox, error) {
	if IsMain(name) {
		return p.Main, nil
	}
	return p.Main.Service(name)
}

// IsMain reports whether a name of a service means the agent's own sandbox.
func IsMain(service string) bool { return service == "" || service == schema.MainService }

// CheckServices runs just before the agent starts. A service that failed after it
// became ready ends the rollout. It also spares the services' processes, so
// that KillAll after the agent does not end them.
func (p *Place) CheckServices(ctx context.Context) error {
	g := p.Main.services
	if g == nil {
		return nil
	}
	if err := g.check(); err != nil {
		return err
	}
	if p.spared || idle(p.Main.Argv()) {
		return nil
	}
	p.spared = true
	return p.Main.Spare(ctx)
}

// KeepServiceFiles keeps the logs and folders of all services. Their sandboxes must
// still run.
func (p *Place) KeepServiceFiles(ctx context.Context) error {
	for _, b := range []*Box{p.Main, p.second} {
		if b == nil || ctx.Err() != nil {
			continue
		}
		if err := b.keepFiles(ctx); err != nil {
			return err
		}
	}
	return nil
}

// OpenVerifier makes the sandbox of a step's separate verifier. In the last step it
// closes the agent's sandbox first. The caller calls CloseVerifier, also after an error.
func (p *Place) OpenVerifier(ctx context.Context, s *plan.Step) (*Box, error) {
	if s.Last {
		if err := p.KeepServiceFiles(ctx); err != nil {
			return nil, err
		}
		p.Main.shut(ctx)
		p.Main = nil
	}
	if err := p.makeSecond(ctx, s); err != nil {
		return nil, err
	}
	p.Stages.Apart, p.lastVerify = true, s.Last
	return p.second, p.second.startServices(ctx, s.Verify.Separate, s)
}

// CloseVerifier keeps the services' files and logs of a separate verifier's sandbox,
// and closes the sandbox, unless Keep may keep it.
func (p *Place) CloseVerifier(ctx context.Context) (err error) {
	if p.second == nil {
		return nil
	}
	if ctx.Err() == nil {
		err = p.second.keepFiles(ctx)
	}
	p.Stages.Apart = false
	if p.lastVerify && p.KeepFor > 0 {
		return err
	}
	p.second.shut(ctx)
	p.second = nil
	return err
}

// Keep keeps the sandbox that was used last: Close does not close it. It fails if there
// is none, or if Reach keeps too many already.
func (p *Place) Keep() (reach.Sandbox, error) {
	b := p.second
	if b == nil {
		b = p.Main
	}
	if b == nil || b.held == nil {
		return reach.Sandbox{}, errors.New("the rollout has none")
	}
	kept, err := b.held.Keep(p.KeepFor, func() { b.shut(context.Background()) }) //nolint:contextcheck // it outlives the rollout
	if err != nil {
		return kept, err
	}
	p.Stages.Clock.Drop(b)
	b.count()
	if b == p.second {
		p.second = nil
	} else {
		p.Main = nil
	}
	return kept, nil
}
