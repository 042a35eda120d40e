package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// smallDisk mounts a file system in memory.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("only root mounts a file system")
	} else {
		err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size)
	}
	testenv.Need(t, "mount", err)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill writes a file of all room that a disk has, and returns its path.
func fill(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "fill"))
	harness.Must(t, err)
	defer f.Close()
	for block := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return f.Name()
}

// TestARunThatCannotWriteEnds: a run under a limit of files, or with a full disk, ends
// with an error that names the path and the reason. It reports no result.
func TestARunThatCannotWriteEnds(t *testing.T) {
	t.Parallel()
	binary := testenv.Binary(t)
	for name, tt := range map[string]struct {
		prepare func(t *testing.T) (env, out string)
		limit   string // of the size of a file, for ulimit -f
		path    string // a part of the path in the error
		reason  string
	}{
		"a limit of files": {
			func(t *testing.T) (string, string) { return t.TempDir(), filepath.Join(t.TempDir(), "out") },
			"60", "nats", "file too large",
		},
		"a full disk of temporary files": {
			func(t *testing.T) (string, string) { return smallDisk(t, "2m"), filepath.Join(t.TempDir(), "out") },
			"unlimited", "turngate-run-", "no space left",
		},
		"a full disk of results": {
			func(t *testing.T) (string, string) {
				dir := smallDisk(t, "1m")
				fill(t, dir)
				return t.TempDir(), filepath.Join(dir, "out")
			},
			"unlimited", "out", "no space left",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmp, out := tt.prepare(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -f "$1"; shift; exec "$@"`, "sh", tt.limit, binary, "run", "examples/tasks/hello",
				"--trainer", "replay:examples/tasks/hello/replay.yaml", "-n", "40", "--out", out)
			cmd.Dir, cmd.Env = testenv.Root(t), append(os.Environ(), "TMPDIR="+tmp)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
			last := lines[len(lines)-1]
			if ctx.Err() != nil || cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(last, "turngate: ") || !strings.Contains(last, tt.path) || !strings.Contains(last, tt.reason) {
				t.Errorf("%v, %v:\n%s", err, ctx.Err(), stderr.String())
			}
			if stdout.Len() > 0 || strings.Contains(stderr.String(), "reward 0") {
				t.Errorf("results were reported: %s%s", stdout.String(), stderr.String())
			}
		})
	}
}

// TestAWorkerWithAFullDiskWaitsForRoom fills the disk of a worker. Its submitter and the
// metrics tell that it takes no rollout. When there is room, the rollout runs in its first
// attempt.
func TestAWorkerWithAFullDiskWaitsForRoom(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	binary, dir, disk, port := testenv.Binary(t), t.TempDir(), smallDisk(t, "256m"), strconv.Itoa(testenv.FreePort(t))
	nats, creds := "nats://127.0.0.1:"+port, func(name string) string { return filepath.Join(dir, "creds", name+".nk") }
	started(t, binary, "NATS is ready", "nats", "--state", dir, "--port", port, "--workers", "w1", "--metrics", "127.0.0.1:0")
	worker := started(t, binary, "worker is ready", "worker", "--nats", nats, "--creds", creds("worker-w1"), "--state", filepath.Join(disk, "state"), "--sandboxes", "local", "--metrics", "127.0.0.1:0")
	shows := func(series ...string) {
		t.Helper()
		for _, s := range series {
			harness.Eventually(t, s, 5*time.Minute, func() bool {
				_, text := harness.Get(t, worker+"/metrics")
				return strings.Contains(text, "\n"+s+"\n")
			})
		}
	}
	shows(`turngate_worker_full{reason="disk"} 0`, "turngate_worker_ready 1")
	full := fill(t, disk)
	shows(`turngate_worker_full{reason="disk"} 1`, "turngate_worker_ready 1")
	run := launch(t, binary, "run", "--nats", nats, "--creds", creds("trainer-local"), "--sandbox", "local", "--out", filepath.Join(t.TempDir(), "job"), "-o", "jsonl", filepath.Join(testenv.Root(t), "examples/tasks/hello"))
	harness.Eventually(t, "the reason on the submitter's screen", 5*time.Minute, func() bool {
		return strings.Contains(run.err.String(), "the workers that could take it (1) are busy, or their hosts are full (1)")
	})
	if _, text := harness.Get(t, worker+"/metrics"); strings.Contains(text, "\nturngate_attempts_total{") {
		t.Errorf("an attempt began on a full disk: %s", text)
	}
	harness.Must(t, os.Remove(full))
	if code := run.wait(t); code != 0 || !strings.Contains(run.out.String(), `"reward":1`) || !strings.Contains(run.out.String(), `"attempt":1`) {
		t.Errorf("code %d: %s%s", code, run.out.String(), run.err.String())
	}
	shows(`turngate_worker_full{reason="disk"} 0`, `turngate_attempts_total{attempt="first"} 1`)
}

// TestAServerWithAFullDiskEnds fills the disk of a server. The server confirms no request
// that it cannot store and ends with an error that names the reason. When there is room, a
// new process has each confirmed request and takes others.
func TestAServerWithAFullDiskEnds(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	binary, disk, port := testenv.Binary(t), smallDisk(t, "128m"), strconv.Itoa(testenv.FreePort(t))
	state := filepath.Join(disk, "state")
	start := func() *running {
		r := launch(t, binary, "nats", "--state", state, "--port", port, "--workers", "w1")
		harness.Eventually(t, "a server", 5*time.Minute, func() bool { return strings.Contains(r.err.String(), "NATS is ready") })
		return r
	}
	dial := func(role, name, creds string) *broker.Broker {
		b, err := broker.Dial(t.Context(), broker.Config{URL: "nats://127.0.0.1:" + port, Creds: filepath.Join(state, "creds", creds), Name: name, Inbox: broker.InboxFor(role, name), Log: zerolog.Nop()})
		harness.Must(t, err)
		t.Cleanup(b.Close)
		return b
	}
	srv := start()
	worker := dial("worker", "w1", "worker-w1.nk")
	harness.Must(t, worker.Streams.Setup(t.Context(), broker.StreamsConfig{}))
	_, err := worker.Trainers.Open(t.Context(), "local")
	harness.Must(t, err)
	side, err := queue.NewTrainer(dial("trainer", "local", "trainer-local.nk"), "local")
	harness.Must(t, err)
	confirmed := map[schema.ID]uint64{}
	submit := func() error {
		r := harness.Request(schema.ID(fmt.Sprintf("local-%d", len(confirmed))))
		r.Task.Instruction = strings.Repeat("x", 100_000)
		seqs, err := side.Submit(t.Context(), 0, []schema.Request{r})
		if err == nil {
			confirmed[r.ID] = seqs[0]
		}
		return err
	}
	harness.Must(t, submit())
	full := fill(t, disk)
	for err == nil {
		if err = submit(); len(confirmed) > 2000 {
			t.Fatal("a full disk took 200 MB")
		}
	}
	if code := srv.wait(t); code != 1 || !strings.Contains(srv.err.String(), "turngate: the NATS server cannot write its store: ") || !strings.Contains(srv.err.String(), "no space left on device") {
		t.Errorf("code %d: %s", code, srv.err.String())
	}
	harness.Eventually(t, "a refusal that says that there is no server", time.Minute, func() bool { return errors.Is(submit(), broker.ErrUnreachable) })
	harness.Must(t, os.Remove(full))
	start()
	harness.Eventually(t, "a request that is taken again", 5*time.Minute, func() bool { return submit() == nil })
	for id, seq := range confirmed {
		if there, err := side.Queued(t.Context(), id, seq); err != nil || !there {
			t.Errorf("the confirmed request %s is lost: %v", id, err)
		}
	}
}
