package worker_test

import (
	"context"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/rollout"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// A rollout without room for its files ends in a result that says so. Running it
// again would not help.
func TestARolloutEndsAlthoughItsTrainersBucketIsFull(t *testing.T) {
	t.Parallel()
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": exits(0)}))
	if err := b.nats.Worker(t, "w9").Trainers.Set(t.Context(), "alpha", broker.TrainerSettings{MaxArtifactBytes: 100}); err != nil {
		t.Fatal(err)
	}
	res := b.result(t, request("alpha-1"))
	if res.Status != schema.StatusDone || res.Attempt != 1 || res.Reward == nil || res.Fault == nil || res.Fault.Code != schema.CodeFull || len(res.Artifacts) != 0 {
		t.Fatalf("got %+v", res)
	}
	if !slices.ContainsFunc(res.Notes, func(n string) bool {
		return strings.Contains(n, "was not kept: the artifacts of trainer alpha have reached their bound of 100 bytes")
	}) {
		t.Fatalf("notes: %q", res.Notes)
	}
}

// TestAWorkersDiskThatFails: the rollout runs again, and the fault is neither the agent's nor
// the sandbox's.
func TestAWorkersDiskThatFails(t *testing.T) {
	t.Parallel()
	agent := func(_ context.Context, p *dummy.Proc) int {
		if err := p.Files.WriteFile("logs/artifacts/large", make([]byte, 200_000), 0o644); err != nil {
			return 1
		}
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": agent}), noDisk(t))
	endsForTheDisk(t, b)
}

// TestNoDiskForTheTranscriptOfAFailedRollout: the rollout runs again here, too, since its
// result would be without the transcript.
func TestNoDiskForTheTranscriptOfAFailedRollout(t *testing.T) {
	t.Parallel()
	agent := func(ctx context.Context, p *dummy.Proc) int {
		_, _ = ask(ctx, p, hex.EncodeToString(harness.Noise(200_000)))
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": exits(0)}, map[string]dummy.Program{"agent": agent}), noDisk(t))
	b.serve(t, ok)
	endsForTheDisk(t, b)
}

// TestARolloutThatRunsAgainKeepsNoSandbox: both tries end with a failed verifier, and with
// the error of the disk. With a disk, the sandbox is kept.
func TestARolloutThatRunsAgainKeepsNoSandbox(t *testing.T) {
	t.Parallel()
	for name, disk := range map[string]func(*worker.Config){"the disk fails": noDisk(t), "the disk works": func(*worker.Config) {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host, err := reach.Open(filepath.Join(t.TempDir(), "reach"))
			harness.Must(t, err)
			closeHost := sync.OnceFunc(host.Close)
			t.Cleanup(closeHost)
			agent := func(ctx context.Context, p *dummy.Proc) int {
				_, _ = ask(ctx, p, hex.EncodeToString(harness.Noise(200_000)))
				return 0
			}
			keeps := func(c *worker.Config) {
				c.Backends = []sandboxes.Backend{withBox{c.Backends[0]}}
				c.Reach, c.Keep = host, rollout.Keep{For: time.Hour}
			}
			b := newBench(t, shells(map[string]dummy.Program{"verify": exits(0)}, map[string]dummy.Program{"agent": agent}), keeps, disk)
			b.serve(t, ok)
			if name == "the disk fails" {
				endsForTheDisk(t, b)
				if kept := host.Kept(); len(kept) != 0 {
					t.Errorf("kept: %+v", kept)
				}
				return
			}
			res := b.result(t, request("alpha-1"))
			if kept := host.Kept(); res.Status != schema.StatusFailed || len(kept) != 1 {
				t.Errorf("%s, kept: %+v", res.Status, kept)
			}
			closeHost()
		})
	}
}

// withBox makes sandboxes that can be kept.
type withBox struct{ sandboxes.Backend }

func (b withBox) Create(ctx context.Context, s sandboxes.Spec) (sandboxes.Sandbox, error) {
	made, err := b.Backend.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return boxed{made}, nil
}

// boxed is a sandbox with a box that gives no stream.
type boxed struct{ sandboxes.Sandbox }

func (boxed) Stream() (net.Conn, error) { return nil, net.ErrClosed }
func (boxed) Lost() <-chan struct{}     { return nil }

// noDisk is the setting of a worker with a failing disk.
func noDisk(t *testing.T) func(*worker.Config) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "spool")
	files, err := spool.Open(dir)
	harness.Must(t, err)
	harness.Must(t, os.Remove(dir))
	return func(c *worker.Config) { c.Spool = files }
}

func endsForTheDisk(t *testing.T, b *bench) {
	t.Helper()
	r := request("alpha-1")
	r.MaxAttempts = 2
	res := b.result(t, r)
	if res.Status != schema.StatusDead || res.Attempt != 2 || res.Reward != nil || res.Fault == nil || res.Fault.Who != schema.WhoWorker || !strings.Contains(res.Fault.Message, "keep bytes on the worker's disk") {
		t.Fatalf("%s, attempt %d, fault %v", res.Status, res.Attempt, res.Fault)
	}
}
