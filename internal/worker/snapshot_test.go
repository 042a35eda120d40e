package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// group returns the requests of a group that shares one setup.
func group(n int) []schema.Request {
	var out []schema.Request
	for i := range n {
		r := request(schema.ID(fmt.Sprintf("alpha-m%d", i)))
		r.Group, r.Index, r.Verify = "g", i, nil
		r.Snapshot, r.Setup = true, []schema.Command{{Run: "prepare"}}
		out = append(out, r)
	}
	return out
}

// members submits requests and returns their results by id.
func (b *bench) members(t *testing.T, requests []schema.Request) map[schema.ID]schema.Result {
	t.Helper()
	if err := b.trainer.Submit(t.Context(), requests); err != nil {
		t.Fatal(err)
	}
	out := map[schema.ID]schema.Result{}
	for range requests {
		r := b.next(t)
		out[r.ID] = r
	}
	return out
}

// setup writes the file made, with the number of the setup.
func setup(runs *atomic.Int32) dummy.Program {
	return func(_ context.Context, p *dummy.Proc) int {
		if p.Files.MkdirAll("workspace", 0o755) != nil || p.Files.WriteFile("workspace/made", []byte(fmt.Sprint(runs.Add(1))), 0o644) != nil {
			return 1
		}
		return 0
	}
}

// inspects prints the files that it finds and adds one of its own.
func inspects(_ context.Context, p *dummy.Proc) int {
	made, err := p.Files.ReadFile("workspace/made")
	if err != nil {
		return 1
	}
	if _, err := p.Files.Stat("workspace/own"); err == nil {
		return 2
	}
	fmt.Fprintf(p.Stdout, "setup %s", made)
	if p.Files.WriteFile("workspace/own", nil, 0o644) != nil {
		return 3
	}
	return 0
}

func phases(r *schema.Result) string {
	var names []string
	for _, p := range r.Phases {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

func TestAGroupSharesOneSetup(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	b := newBench(t, map[string]dummy.Program{"agent": inspects, "/bin/sh": setup(&runs)})
	all := b.members(t, group(6))
	var maker schema.ID
	for id, r := range all {
		if r.Status != schema.StatusDone || r.Exit == nil || !r.Exit.OK() || len(r.Notes) > 0 {
			t.Errorf("%s: %s %v, %v, notes %q", id, r.Status, r.Exit, r.Fault, r.Notes)
		}
		if strings.HasPrefix(phases(&r), "snapshot create upload setup[0] snapshot/copy agent") {
			maker = id
		}
	}
	if maker == "" || runs.Load() != 1 {
		t.Fatalf("%d setups ran, in %q", runs.Load(), maker)
	}
	for id, r := range all {
		if id == maker {
			continue
		}
		if got := phases(&r); !strings.HasPrefix(got, "snapshot create agent") {
			t.Errorf("%s has the phases %s", id, got)
		} else if !strings.Contains(r.Phases[0].Output, string(maker)) {
			t.Errorf("%s began with: %s", id, r.Phases[0].Output)
		}
	}
	// Another setup, and another group, are not the same files.
	other, third := group(1)[0], group(1)[0]
	other.ID, other.Setup = "alpha-other", []schema.Command{{Run: "prepare more"}}
	third.ID, third.Group = "alpha-third", "h"
	b.members(t, []schema.Request{other, third})
	if runs.Load() != 3 || len(b.backend.Snapshots()) != 3 {
		t.Errorf("%d setups ran and %d snapshots are kept", runs.Load(), len(b.backend.Snapshots()))
	}
	b.stop()
	if n := len(b.backend.Snapshots()); n != 0 {
		t.Errorf("the worker left %d snapshots", n)
	}
}

func TestTheNextRolloutMakesTheSnapshotIfOneFails(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	good := setup(&runs)
	b := newBench(t, map[string]dummy.Program{"agent": inspects, "/bin/sh": func(ctx context.Context, p *dummy.Proc) int {
		if code := good(ctx, p); code != 0 || runs.Load() > 1 {
			return code
		}
		return 9 // the first setup
	}})
	failed := 0
	for id, r := range b.members(t, group(5)) {
		if r.Status == schema.StatusFailed && r.Fault.Code == schema.CodeSetup {
			failed++
		} else if r.Status != schema.StatusDone || !r.Exit.OK() {
			t.Errorf("%s: %s %v", id, r.Status, r.Fault)
		}
	}
	if failed != 1 || runs.Load() != 2 {
		t.Errorf("%d failed, %d setups ran", failed, runs.Load())
	}
}

func TestARolloutThatWaitsForASnapshotIsCancelled(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	var runs atomic.Int32
	good := setup(&runs)
	b := newBench(t, map[string]dummy.Program{"agent": inspects, "/bin/sh": func(ctx context.Context, p *dummy.Proc) int {
		began <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return good(ctx, p)
	}})
	requests := group(2)
	if err := b.trainer.Submit(t.Context(), requests[:1]); err != nil {
		t.Fatal(err)
	}
	<-began
	if err := b.trainer.Submit(t.Context(), requests[1:]); err != nil {
		t.Fatal(err)
	}
	for _, r := range []schema.ID{requests[1].ID, requests[0].ID} { // the maker last
		if err := b.trainer.Cancel([]schema.ID{r}, "enough"); err != nil {
			t.Fatal(err)
		}
		if got := b.next(t); got.ID != r || got.Status != schema.StatusCancelled {
			t.Fatalf("%s: got %s %s", r, got.ID, got.Status)
		}
	}
	close(release)
	next := group(3)[2]
	if err := b.trainer.Submit(t.Context(), []schema.Request{next}); err != nil {
		t.Fatal(err)
	}
	<-began
	if r := b.next(t); r.Status != schema.StatusDone || !r.Exit.OK() {
		t.Errorf("after the cancel: %s %v", r.Status, r.Fault)
	}
}

// plain is a backend without snapshots.
type plain struct{ *dummy.Backend }

func (p plain) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	sb, err := p.Backend.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return noSnapshots{sb}, nil
}

// copies is a backend with another Snapshot.
type copies struct {
	*dummy.Backend
	snapshot func(ctx context.Context, sb sandboxes.Sandbox) (sandboxes.Snapshot, error)
}

type copiedSandbox struct {
	sandboxes.Sandbox
	b copies
}

func (c copies) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	sb, err := c.Backend.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return copiedSandbox{sb, c}, nil
}

func (s copiedSandbox) Snapshot(ctx context.Context, _ int64) (sandboxes.Snapshot, error) {
	return s.b.snapshot(ctx, s.Sandbox)
}

func withCopies(f func(ctx context.Context, sb sandboxes.Sandbox) (sandboxes.Snapshot, error)) func(*worker.Config) {
	return func(c *worker.Config) {
		c.Backends = []sandboxes.Backend{copies{c.Backends[0].(*dummy.Backend), f}}
	}
}

// TestACopyThatFails: each rollout runs its own setup, and none is tried again.
func TestACopyThatFails(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"an error": errors.New("no space left on device"), "too large": sandboxes.NoSnapshots("the setup wrote 9000 MB"),
	} {
		var runs, tried atomic.Int32
		b := newBench(t, map[string]dummy.Program{"agent": inspects, "/bin/sh": setup(&runs)}, withCopies(func(context.Context, sandboxes.Sandbox) (sandboxes.Snapshot, error) {
			tried.Add(1)
			return nil, err
		}))
		for id, r := range b.members(t, group(4)) {
			if r.Status != schema.StatusDone || r.Attempt != 1 || !r.Exit.OK() || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "ran its own setup") {
				t.Errorf("%s: %s: %s %v, notes %q", name, id, r.Status, r.Fault, r.Notes)
			}
		}
		if runs.Load() != 4 || tried.Load() != 1 {
			t.Errorf("%s: %d setups ran and %d copies were tried", name, runs.Load(), tried.Load())
		}
	}
}

// TestACancelInTheMiddleOfACopy ends the rollout, and another one makes the copy.
func TestACancelInTheMiddleOfACopy(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	copying := make(chan struct{}, 1)
	b := newBench(t, map[string]dummy.Program{"agent": inspects, "/bin/sh": setup(&runs)}, withCopies(func(ctx context.Context, sb sandboxes.Sandbox) (sandboxes.Snapshot, error) {
		if runs.Load() > 1 {
			return sb.Snapshot(ctx, 0)
		}
		copying <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}))
	requests := group(3)
	if err := b.trainer.Submit(t.Context(), requests[:1]); err != nil {
		t.Fatal(err)
	}
	<-copying
	if err := b.trainer.Cancel([]schema.ID{requests[0].ID}, "enough"); err != nil {
		t.Fatal(err)
	}
	if r := b.next(t); r.Status != schema.StatusCancelled {
		t.Fatalf("got %s %v", r.Status, r.Fault)
	}
	for id, r := range b.members(t, requests[1:]) {
		if r.Status != schema.StatusDone || !r.Exit.OK() || len(r.Notes) > 0 {
			t.Errorf("%s: %s %v, notes %q", id, r.Status, r.Fault, r.Notes)
		}
	}
	if runs.Load() != 2 {
		t.Errorf("%d setups ran", runs.Load())
	}
}

// TestACopyWithWhichNoSandboxBegins is dropped: the rollout is tried again, and each one
// runs its own setup.
func TestACopyWithWhichNoSandboxBegins(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	b := newBench(t, map[string]dummy.Program{"agent": inspects, "/bin/sh": setup(&runs)}, withCopies(func(ctx context.Context, sb sandboxes.Sandbox) (sandboxes.Snapshot, error) {
		made, err := sb.Snapshot(ctx, 0)
		if err != nil {
			return nil, err
		}
		return made, made.Remove(ctx) // as if it were pruned
	}))
	for id, r := range b.members(t, group(3)) {
		if r.Status != schema.StatusDone || !r.Exit.OK() {
			t.Errorf("%s: %s %v", id, r.Status, r.Fault)
		}
	}
	if n := len(b.backend.Snapshots()); n != 0 {
		t.Errorf("%d snapshots are left", n)
	}
}

type noSnapshots struct{ sandboxes.Sandbox }

func (noSnapshots) CanSnapshot() error { return sandboxes.Alone{}.CanSnapshot() }

func TestABackendWithoutSnapshots(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	b := newBench(t, map[string]dummy.Program{"agent": inspects, "/bin/sh": setup(&runs)}, func(c *worker.Config) {
		c.Backends = []sandboxes.Backend{plain{c.Backends[0].(*dummy.Backend)}}
	})
	for id, r := range b.members(t, group(4)) {
		if r.Status != schema.StatusDone || !r.Exit.OK() || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "this rollout ran its own setup") {
			t.Errorf("%s: %s %v, notes %q", id, r.Status, r.Fault, r.Notes)
		}
	}
	if runs.Load() != 4 {
		t.Errorf("%d setups ran", runs.Load())
	}
}

func TestASnapshotThatIsGone(t *testing.T) {
	t.Parallel()
	var runs atomic.Int32
	b := newBench(t, map[string]dummy.Program{"agent": inspects, "/bin/sh": setup(&runs)})
	requests := group(3)
	for i := range requests {
		if i == 1 { // another program removes it, such as docker image prune
			for _, made := range b.backend.Snapshots() {
				if err := made.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if r := b.result(t, requests[i]); r.Status != schema.StatusDone || !r.Exit.OK() {
			t.Fatalf("%s: %s %v", r.ID, r.Status, r.Fault)
		}
	}
	if runs.Load() != 2 {
		t.Errorf("%d setups ran", runs.Load())
	}
}
