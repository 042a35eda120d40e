package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/internal/reach"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
)

// link is the connection of a trainer.
type link struct {
	broker *broker.Broker
	watch  *natsFlags // rights of an operator, of a server in this process; nil: it is elsewhere
	close  func()
}

// connect connects the trainer. It connects to the server of --nats, or
// starts a server and a worker in this process. The job, if any, records that
// worker, so that a process that resumes the job can remove the sandboxes of a
// process that died. fail is called if that server cannot store messages any more.
func (f *runFlags) connect(ctx context.Context, j *jobs.Job, fail func(error), log zerolog.Logger) (_ *link, err error) {
	if f.nats.url != "" {
		b, err := f.nats.dial(ctx, "trainer", f.name, log)
		if err != nil {
			return nil, err
		}
		return &link{broker: b, close: b.Close}, nil
	}
	if f.sandbox == "machine" {
		return nil, usage("--sandbox: machine is not valid without --nats: want the server to which the machine dials out, and a worker there with --sandboxes machine")
	}
	var closers []func()
	closeAll := func() {
		for _, c := range slices.Backward(closers) {
			c()
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	state, who, host, closeState, err := f.localState(j, log)
	if err != nil {
		return nil, err
	}
	closers = append(closers, closeState)
	files, err := os.MkdirTemp(state, "nats-") // a new folder, without the streams of a process that died
	if err != nil {
		return nil, fmt.Errorf("make a state directory: %w", err)
	}
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: files, Trainers: []string{f.name}, Workers: []string{who.name}, Relaxed: true, Failed: fail, Log: log}) //nolint:contextcheck // it ends by Shutdown
	if err != nil {
		return nil, err
	}
	closers = append(closers, srv.Shutdown)
	dial := func(creds, role, name string) (*broker.Broker, error) {
		nf := natsFlags{url: srv.URL(), creds: creds}
		b, err := nf.dial(ctx, role, name, log)
		if err == nil {
			closers = append(closers, b.Close)
		}
		return b, err
	}
	wb, err := dial(srv.WorkerCreds(who.name), "worker", who.name)
	if err != nil {
		return nil, err
	}
	if err := wb.Streams.Setup(ctx, broker.StreamsConfig{}); err != nil {
		return nil, err
	}
	wf := workerFlags{
		room: roomFlags{slots: slotsFlag{n: f.parallel}, keepFreeMemoryMB: -1, keepFreeDiskMB: -1}, sandboxes: f.sandbox, backends: f.backends, allowNetwork: schema.NetworkOpen + "," + schema.NetworkAllowlist, state: state, agents: f.agents, grace: time.Millisecond, upstreams: f.upstreams, conversationsMB: 1024, images: imageFlags{keepImagesGB: defaultKeepGB}, requestsMB: 512, maxSnapshotMB: defaultCopyMB, person: f.person, reach: host, keep: f.keeping(),
	}
	timing := broker.DefaultTiming()
	timing.NoCapable = 0 // no other worker can join
	w, release, err := wf.start(ctx, wb, nil, who, timing, nil, nil, log)
	if err != nil {
		return nil, err
	}
	closers = append(closers, release)
	tb, err := dial(srv.TrainerCreds(f.name), "trainer", f.name)
	if err != nil {
		return nil, err
	}
	closers = append(closers, inBackground(ctx, w, log))
	return &link{tb, &natsFlags{url: srv.URL(), creds: srv.OpsCreds()}, closeAll}, nil
}

// localState returns the state folder and the names for the worker in this process, and the
// host of its sandboxes; nil: commands do not reach them. Sandboxes that are kept end with
// the keeper.
func (f *runFlags) localState(j *jobs.Job, log zerolog.Logger) (state string, who identity, host *reach.Host, done func(), err error) {
	if f.keeping().For > 0 && f.keeper != nil {
		if state, err = f.keeper.state(); err == nil {
			err = checkRoom(state)
		}
		who.name = "run-" + randomHex(4)
		if err == nil {
			who.owner, err = worker.OwnerOf(who.name, state)
		}
		if err == nil {
			err = f.keeper.note(who.owner, f)
		}
		return state, who, f.keeper.host, func() {}, err
	}
	if state, who.name, err = localWorker(j); err != nil {
		return "", who, nil, nil, err
	}
	if err = checkRoom(state); err == nil {
		who.owner, err = worker.OwnerOf(who.name, state)
	}
	if err != nil {
		os.RemoveAll(state)
		return "", who, nil, nil, err
	}
	if host, err = reach.Open(reach.Root()); err != nil { // another user can cause it
		log.Warn().Err(err).Msg("turngate sandbox ls does not list the sandboxes of this command")
		return state, who, nil, func() { os.RemoveAll(state) }, nil
	}
	return state, who, host, func() { host.Close(); os.RemoveAll(state) }, nil
}

// minRoom is the free room that the server of a run needs for its streams.
const minRoom = 16 << 20

func checkRoom(dir string) error {
	free, _, err := kernel.Disk(dir)
	if err != nil {
		return fmt.Errorf("look for the room on the disk: %w", err)
	}
	if free < minRoom {
		return fmt.Errorf("%s has %d KiB free, want %d or more: %w; free some, or name another folder in TMPDIR", dir, free>>10, minRoom>>10, unix.ENOSPC)
	}
	return nil
}

// storeFailed returns the error of the server's store in place of err if that error
// ended the context.
func storeFailed(ctx context.Context, err error) error {
	var failed *broker.StoreError
	if err != nil && errors.As(context.Cause(ctx), &failed) {
		return failed
	}
	return err
}

const stateName = "turngate-run-"

// localWorker returns the state folder and the name for a worker inside this
// process. It takes them from the job's last process, if that left its folder.
func localWorker(j *jobs.Job) (state, wid string, err error) {
	if j != nil && leftState(j.Plan.State) && schema.CheckToken("worker", j.Plan.Worker) == nil {
		return j.Plan.State, j.Plan.Worker, nil
	}
	if state, err = os.MkdirTemp("", stateName); err != nil {
		return "", "", fmt.Errorf("make a state directory: %w", err)
	}
	wid = "run-" + randomHex(4)
	if j != nil {
		if err := j.SetWorker(wid, state); err != nil {
			os.RemoveAll(state)
			return "", "", err
		}
	}
	return state, wid, nil
}

// leftState reports whether a path is a folder that a process of this user made
// for its worker. The check is needed because connect removes the folder in the
// end, and the path comes from the job, which another person may have written.
func leftState(path string) bool {
	if filepath.Dir(path) != filepath.Clean(os.TempDir()) || !strings.HasPrefix(filepath.Base(path), stateName) {
		return false
	}
	var info unix.Stat_t
	return unix.Lstat(path, &info) == nil && info.Mode&unix.S_IFMT == unix.S_IFDIR && int(info.Uid) == os.Getuid() && info.Mode&0o077 == 0
}

// inBackground runs a worker until stop is called.
func inBackground(ctx context.Context, w *worker.Worker, log zerolog.Logger) (stop func()) {
	bg, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(bg); err != nil {
			log.Error().Err(err).Msg("the worker failed")
		}
	})
	return func() { cancel(); running.Wait() }
}
