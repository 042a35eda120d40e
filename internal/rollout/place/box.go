package place

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout/egress"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Box is a sandbox with its services and a separate network for each phase of a rollout. In a
// phase with an allowlist the sandbox has no network; variables direct its
// commands to a proxy in this worker.
type Box struct {
	sandboxes.Sandbox
	backend  string
	stages   *stage.Stages
	limits   *schema.Limits
	services *serviceGroup // nil: it runs none
	mixed    bool          // some phases have the open network and others not
	proxy    *egress.Proxy // nil before a phase with an allowlist
	url      string        // of the proxy in the sandbox
	own      bool          // of the agent's sandbox, not of a separate verifier's
	names    []string      // names of the side-cars, which are reached without the proxy
	held     *reach.Held   // nil: no command can reach it
	made     time.Time
	price    *float64 // in USD per hour; nil: not known
	counted  sync.Once

	mu     sync.Mutex
	env    map[string]string // variables for commands of this phase
	at     network           // of this phase
	agents []network         // those of phases in which an agent ran, since KillAll
}

// network is that of a phase.
type network struct {
	kind  string
	allow []string // of an allowlist
}

// within reports whether everything that the network reaches is in reach of other, too.
// An allowlist is not within the open network: it may name addresses of the worker's own.
func (w network) within(other network) bool {
	switch w.kind {
	case schema.NetworkOpen:
		return other.kind == schema.NetworkOpen
	case schema.NetworkAllowlist:
		return other.kind == schema.NetworkAllowlist && !slices.ContainsFunc(w.allow, func(host string) bool { return !slices.Contains(other.allow, host) })
	default:
		return true
	}
}

// sandboxNetwork returns the network to make a sandbox with: the open one if
// any of its phases needs it.
func sandboxNetwork(phases []string) string {
	if slices.Contains(phases, schema.NetworkOpen) {
		return schema.NetworkOpen
	}
	return schema.NetworkNone
}

// Confine ends the processes that an agent has left if the network of a stage reaches
// more than the agent did: no process of an agent ever has a wider network.
func (n *Box) Confine(ctx context.Context, phase, kind string, allow []string) error {
	n.mu.Lock()
	wider := slices.ContainsFunc(n.agents, func(agents network) bool { return !network{kind, allow}.within(agents) })
	n.mu.Unlock()
	if !wider {
		return nil
	}
	released, err := n.Release(ctx, nil)
	if err != nil {
		return err
	}
	if left := slices.Concat(released.Ended, released.Left); len(left) > 0 {
		n.stages.Record.Note("%s: processes that the agent left were ended, since the network of this phase reaches more than the agent's did: %s", phase, schema.Clip(strings.Join(left, "; "), 500))
	}
	return n.KillAll(ctx)
}

// KillAll implements sandboxes.Sandbox.
func (n *Box) KillAll(ctx context.Context) error {
	if err := n.Sandbox.KillAll(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.agents = nil
	return nil
}

// Enter switches the sandbox to the network of a stage, after Confine.
func (n *Box) Enter(ctx context.Context, phase, kind string, allow []string) error {
	if err := n.Confine(ctx, phase, kind, allow); err != nil {
		return err
	}
	n.mu.Lock()
	n.at = network{kind, allow}
	n.mu.Unlock()
	if n.mixed {
		if err := n.Online(ctx, kind == schema.NetworkOpen); err != nil {
			return createFault(err)
		}
	}
	n.setEnv(nil)
	policy, err := egress.NewPolicy(allow)
	if err != nil {
		return ends.Fail(ends.UserFault(err))
	}
	if kind != schema.NetworkAllowlist {
		if n.proxy != nil {
			n.proxy.Enter(phase, &egress.Policy{})
		}
		return nil
	}
	if n.proxy == nil {
		n.proxy = egress.New(func(e *schema.NetEvent) {
			n.stages.Record.Events.Emit(&schema.Event{Type: schema.EventNet, Net: e})
		})
		if n.url, err = n.Forward(ctx, n.proxy); err != nil {
			return err
		}
	}
	n.proxy.Enter(phase, policy)
	direct := strings.Join(slices.Concat([]string{"localhost", "127.0.0.1", "::1"}, n.names), ",")
	n.setEnv(map[string]string{
		"HTTP_PROXY": n.url, "HTTPS_PROXY": n.url, "http_proxy": n.url, "https_proxy": n.url, "NO_PROXY": direct, "no_proxy": direct,
	})
	return nil
}

// setEnv sets the variables of commands that start from now on.
func (n *Box) setEnv(env map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.env = env
}

// phaseEnv returns the variables of this phase; the caller does not change them.
func (n *Box) phaseEnv() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.env
}

// Start implements sandboxes.Sandbox. The command's own variables are laid over those of
// the phase.
func (n *Box) Start(ctx context.Context, c sandboxes.Cmd) (sandboxes.Process, error) {
	if env := n.phaseEnv(); env != nil {
		c.Env = sandboxes.Environment(env, c.Env)
	}
	if c.Untrusted {
		n.mu.Lock()
		n.agents = append(n.agents, n.at)
		n.mu.Unlock()
	}
	start := time.Now()
	proc, err := n.Sandbox.Start(ctx, c)
	if n.own {
		err = ends.Spoils(ctx, &n.stages.Touched, time.Since(start), err)
	}
	return proc, err
}

// Files implements sandboxes.Sandbox.
func (n *Box) Files() sandboxes.Files { return touchedFiles{n.Sandbox.Files(), &n.stages.Touched} }

// Close implements sandboxes.Sandbox.
func (n *Box) Close(ctx context.Context) error {
	err := n.Sandbox.Close(ctx)
	if n.proxy != nil {
		n.proxy.Close()
	}
	return err
}

// shut closes the sandbox, even after the context has ended. When it returns, its
// services have ended.
func (n *Box) shut(ctx context.Context) {
	n.held.Remove()
	n.stages.Clock.Drop(n)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if n.services != nil && n.services.stop != nil {
		n.services.stop()
	}
	if err := n.Close(ctx); err != nil {
		n.stages.Record.Log.Error().Err(err).Msg("a sandbox was not removed")
	} else {
		n.stages.Record.Telemetry.SandboxClosed(n.backend)
	}
	n.count()
	if n.services != nil {
		n.services.running.Wait()
	}
}

// count adds the time for which the sandbox has existed to the rollout's, once.
func (n *Box) count() {
	n.counted.Do(func() { n.stages.Record.Sandbox(time.Since(n.made), n.price) })
}

// newBox wraps a new sandbox for phases with these networks.
func newBox(sb sandboxes.Sandbox, backend string, spec *sandboxes.Spec, phases []string, stages *stage.Stages, limits *schema.Limits) *Box {
	closed := func(network string) bool { return network != schema.NetworkOpen }
	n := &Box{Sandbox: sb, made: time.Now(), backend: backend, stages: stages, limits: limits, own: spec.Part == "", mixed: spec.Network == schema.NetworkOpen && slices.ContainsFunc(phases, closed)}
	if paid, ok := sb.(sandboxes.Paid); ok {
		n.made = paid.Made()
	}
	for _, service := range spec.Services {
		n.names = append(n.names, service.Name)
	}
	return n
}
