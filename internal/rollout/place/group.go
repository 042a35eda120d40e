package place

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// serviceGroup runs the services of one sandbox: its side-cars and the main
// container's own command.
type serviceGroup struct {
	stages  *stage.Stages
	limits  *schema.Limits
	phase   string // name of the phase that collects the services' files
	prefix  string // of the names of their artifacts
	folders []schema.Folder
	all     []*member
	stop    context.CancelFunc
	running sync.WaitGroup
	broken  chan struct{} // closed when a service has failed
	breaks  sync.Once
	kept    bool
}

// member is one service with its command.
type member struct {
	name      string
	sb        sandboxes.Sandbox
	container schema.Container
	restart   string
	argv      []string
	log       *lastLog

	started, healthy, ended chan struct{} // closed when the service reaches the state

	mu     sync.Mutex
	failed string // reason why it will not become ready; empty: no failure
}

// idle reports whether an argv does nothing: it is empty or the schema's idle
// command. Such a service needs no process.
func idle(argv []string) bool {
	return len(argv) == 0 || slices.Equal(argv, schema.IdleCommand())
}

// startGroup starts the services of a sandbox in the order of their
// dependencies. It waits until each is running, or healthy if it has a check,
// or completed if another service waits for that.
func (n *Box) startGroup(ctx context.Context, p *record.Phase, choice *schema.SandboxChoice, keepPhase, prefix string) error {
	g := &serviceGroup{stages: n.stages, limits: n.limits, phase: keepPhase, prefix: prefix, folders: choice.Folders, broken: make(chan struct{})}
	n.services = g
	g.add(&member{name: schema.MainService, sb: n, container: choice.Container, argv: n.Argv()})
	for _, s := range choice.Services {
		side, err := n.Service(s.Name)
		if err != nil {
			return err
		}
		g.add(&member{name: s.Name, sb: side, container: s.Container, restart: s.Restart, argv: side.Argv()})
	}
	g.imageHealth()
	var inner context.Context
	inner, g.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, m := range g.all {
		g.running.Go(func() { g.run(inner, m) })
	}
	limit := n.limits.InstallMS
	wait, cancel := n.stages.Clock.Limit(ctx, stage.MS(limit), errNotReady)
	defer cancel()
	for _, m := range g.all {
		err := g.ready(wait, m)
		if errors.Is(err, errNotReady) {
			return g.fault(m, fmt.Sprintf("is not ready within %d ms", limit))
		}
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(p.Output("stdout"), "%s is ready\n", m.name)
	}
	return g.check()
}

var errNotReady = errors.New("a service is not ready")

func (g *serviceGroup) add(m *member) {
	m.log = newLastLog(g.stages.Record.Files)
	m.started, m.healthy, m.ended = make(chan struct{}), make(chan struct{}), make(chan struct{})
	g.all = append(g.all, m)
}

func (g *serviceGroup) find(name string) *member {
	i := slices.IndexFunc(g.all, func(m *member) bool { return m.name == name })
	return g.all[i] // the request was validated, so the service exists
}

// imageHealth gives the image's own health check to each service that has no
// other one and that another service waits for until it is healthy.
func (g *serviceGroup) imageHealth() {
	for _, m := range g.all {
		for _, a := range m.container.After {
			if on := g.find(a.Service); a.Condition == schema.AfterHealthy && on.container.Health == nil {
				on.container.Health = on.sb.Health()
			}
		}
	}
}

// ready waits until a service has reached the last state that is needed of it.
func (g *serviceGroup) ready(ctx context.Context, m *member) error {
	goal := m.started
	if m.container.Health != nil {
		goal = m.healthy
	}
	for _, other := range g.all {
		if slices.Contains(other.container.After, schema.After{Service: m.name, Condition: schema.AfterCompleted}) {
			goal = m.ended
		}
	}
	select {
	case <-goal:
	case <-m.ended:
	case <-g.broken:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return g.check()
}

// check returns a fault if a service has failed.
func (g *serviceGroup) check() error {
	for _, m := range g.all {
		m.mu.Lock()
		why := m.failed
		m.mu.Unlock()
		if why != "" {
			return g.fault(m, why)
		}
	}
	return nil
}

func (g *serviceGroup) fault(m *member, why string) error {
	f := schema.Faultf("services", schema.CodeService, schema.WhoTask, "service %s %s: %s", m.name, why, m.log.end(2000))
	if m.log.empty() {
		f = schema.Faultf("services", schema.CodeService, schema.WhoTask, "service %s %s; it said nothing", m.name, why)
	}
	return ends.Fail(f)
}

// fail records the failure of a service. The first failure closes broken.
func (g *serviceGroup) fail(m *member, why string) {
	m.mu.Lock()
	if m.failed == "" {
		m.failed = why
	}
	m.mu.Unlock()
	g.breaks.Do(func() { close(g.broken) })
}

// run starts a service after its dependencies and restarts it by its restart
// policy, until its sandbox ends.
func (g *serviceGroup) run(ctx context.Context, m *member) {
	defer close(m.ended)
	for _, a := range m.container.After {
		if !g.await(ctx, a) {
			return // the failed dependency gives the reason
		}
	}
	if m.name == schema.MainService && idle(m.argv) {
		close(m.started)
		g.probe(ctx, m)
		<-ctx.Done()
		return
	}
	if len(m.argv) == 0 {
		g.fail(m, "has no command: neither its image nor the task names one")
		return
	}
	g.running.Go(func() {
		select {
		case <-m.started:
			g.probe(ctx, m)
		case <-m.ended:
		case <-ctx.Done():
		}
	})
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		if !g.once(ctx, m) {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// once runs a service's command to its end and reports whether to restart it.
func (g *serviceGroup) once(ctx context.Context, m *member) bool {
	proc, err := m.sb.Start(ctx, sandboxes.Cmd{Args: m.argv, Stdout: m.log, Stderr: m.log, OutputLimit: 1 << 50})
	if err != nil {
		if ctx.Err() == nil {
			g.fail(m, "did not start: "+err.Error())
		}
		return false
	}
	select {
	case <-m.started:
	default:
		close(m.started)
	}
	exit, err := proc.Wait()
	if ctx.Err() != nil {
		return false
	}
	switch {
	case err != nil:
		g.fail(m, "is gone: "+err.Error())
		return false
	case m.restart == schema.RestartAlways, m.restart == schema.RestartOnFailure && !exit.OK():
		return true
	case !exit.OK():
		g.fail(m, "ended with "+exit.String())
	case m.container.Health != nil && !closed(m.healthy):
		g.fail(m, "ended before it was healthy")
	}
	return false
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// await waits until another service reaches a condition and reports whether it
// did.
func (g *serviceGroup) await(ctx context.Context, a schema.After) bool {
	m := g.find(a.Service)
	goal := m.started
	switch a.Condition {
	case schema.AfterHealthy:
		goal = m.healthy
		if m.container.Health == nil {
			g.fail(m, "has no health check, neither of its own nor of its image, and another service waits until it is healthy")
			return false
		}
	case schema.AfterCompleted:
		goal = m.ended
	}
	select {
	case <-goal:
	case <-m.ended:
	case <-g.broken:
		return false
	case <-ctx.Done():
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failed == "" && closed(goal)
}

// probe runs a service's health check until it passes once or fails Retries
// times in a row.
func (g *serviceGroup) probe(ctx context.Context, m *member) {
	h := m.container.Health
	if h == nil {
		return
	}
	ran := g.stages.Clock.Watch()
	for failures := 0; ; {
		var out bytes.Buffer
		proc, err := m.sb.Start(ctx, sandboxes.Cmd{Args: h.Test, Stdout: &out, Stderr: &out, Timeout: stage.MS(h.TimeoutMS), OutputLimit: 4 << 10})
		var exit *schema.Exit
		if err == nil {
			exit, err = stage.Await(ctx, proc)
		}
		if ctx.Err() != nil || closed(m.ended) {
			return
		}
		if err == nil && exit.OK() {
			close(m.healthy)
			return
		}
		pause := stage.MS(h.IntervalMS)
		if ran() < stage.MS(h.StartMS) {
			pause = min(pause, stage.MS(h.StartIntervalMS))
		} else if failures++; failures >= h.Retries {
			why := fmt.Sprintf("is not healthy after %d failures in a row of its check", failures)
			if err != nil {
				why += " (" + err.Error() + ")"
			} else if out.Len() > 0 {
				why += " (" + schema.Clip(out.String(), 500) + ")"
			}
			g.fail(m, why)
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}
