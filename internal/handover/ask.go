package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/owned"
)

const (
	// askEvery is the time between two requests for the turn.
	askEvery = 100 * time.Millisecond
	// deafFor is the time after which a process that has the turn and hears no requests is
	// reported.
	deafFor = 20 * time.Second
)

func (p *Process) pipePath() string { return filepath.Join(p.state, "worker.handover") }

// Listen lets other processes ask for the turn, which this process has.
func (p *Process) Listen() error {
	path := p.pipePath()
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make the pipe %s: %w", path, err)
	}
	if err := owned.Check(path); err != nil {
		return fmt.Errorf("the worker's state: %w", err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0) // for writing too, so that it has no end
	if err != nil {
		return fmt.Errorf("open the pipe for hand-overs: %w", err)
	}
	if info, err := pipe.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		pipe.Close()
		return fmt.Errorf("%s is no pipe: remove it", path)
	}
	p.mu.Lock()
	p.pipe = pipe
	p.mu.Unlock()
	go func() { // until the pipe is closed
		asks := make([]byte, 64)
		ask := sync.OnceFunc(func() { close(p.asked) })
		for {
			switch _, err := pipe.Read(asks); {
			case err == nil:
				ask()
			case errors.Is(err, unix.EAGAIN): // macOS: a read of an empty pipe does not wait
				<-time.After(askEvery)
			default:
				return
			}
		}
	}()
	return nil
}

// Asked is closed when another process asks for the turn.
func (p *Process) Asked() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.asked
}

// Retire gives the turn to the process that asked. use measures the rollouts that this
// process still runs; it takes no more from now on.
func (p *Process) Retire(use func() Use) error {
	p.mu.Lock()
	p.retired = true
	p.mu.Unlock()
	err := p.Report(use)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.giveTurn()
	return err
}

// Report writes the use of a process that has retired for the other processes.
func (p *Process) Report(use func() Use) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.retired {
		return nil
	}
	p.record.Use = use()
	return p.write()
}

// Follow asks the process that has the turn to retire, and takes the turn when it has. One
// process follows at a time, or the order of several would be chance. A state folder that
// cannot be written is an error before the first request.
func (p *Process) Follow(ctx context.Context) error {
	next, err := lock(filepath.Join(p.state, "worker.next"))
	if errors.Is(err, ErrBusy) {
		return fmt.Errorf("a process already waits to follow the worker in %s", p.state)
	} else if err != nil {
		return err
	}
	defer next.Close()
	if err := p.tryWrite(); err != nil {
		return err
	}
	heard := time.Now()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		if err := p.Begin(); !errors.Is(err, ErrBusy) {
			return err
		}
		if err := p.ask(); err == nil {
			heard = time.Now()
		} else if time.Since(heard) > deafFor {
			return fmt.Errorf("%w %s, and hears of no hand-over (it is no `turngate worker`, or hangs at its start): %w", ErrBusy, p.state, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// tryWrite writes a file as large as a record, and removes it.
func (p *Process) tryWrite() error {
	path := p.file(p.number, ".try")
	err := owned.Replace(path, make([]byte, 4096))
	if rerr := os.Remove(path); err == nil {
		err = rerr
	}
	if err != nil {
		return fmt.Errorf("write to the worker's state: %w", err)
	}
	return nil
}

// ask asks for the turn.
func (p *Process) ask() error {
	pipe, err := unix.Open(p.pipePath(), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(pipe, []byte{1})
		_ = unix.Close(pipe)
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) { // EAGAIN: it is full of requests
		return fmt.Errorf("ask for a hand-over: %w", err)
	}
	return nil
}
