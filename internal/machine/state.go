// Package machine is the part of a machine that belongs to its host: the lock and the
// epoch in its state folder, and its load.
package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/owned"
)

// State is the state folder of a machine, which one process has at a time.
type State struct {
	Dir  string
	lock *os.File
}

// Open makes the folder and locks it. The lock ends with the process.
func Open(dir string) (*State, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	lockFile := filepath.Join(dir, "machine.lock")
	for _, path := range []string{dir, lockFile} {
		if err := owned.Check(path); err != nil {
			return nil, fmt.Errorf("the machine's state: %w", err)
		}
	}
	lock, err := os.OpenFile(lockFile, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("another machine uses the state directory %s; give this one its own with --state", dir)
	}
	return &State{dir, lock}, nil
}

// Close gives the folder back.
func (s *State) Close() { s.lock.Close() }

// Epoch returns a larger number than all earlier calls. It is the time in milliseconds unless
// the clock was set back, so that it grows without the folder, too.
func (s *State) Epoch(now time.Time) (int64, error) {
	file := filepath.Join(s.Dir, "epoch")
	epoch := now.UnixMilli()
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("read the epoch: %w", err)
	}
	if last, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil && last >= epoch {
		epoch = last + 1
	}
	if err := owned.Replace(file, []byte(strconv.FormatInt(epoch, 10)+"\n")); err != nil {
		return 0, fmt.Errorf("write the epoch: %w", err)
	}
	return epoch, nil
}
