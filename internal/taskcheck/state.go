package taskcheck

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/tasks"
)

// stateName is the file in a state folder: a line of JSON for each finished
// check.
const stateName = "checks.jsonl"

// maxReport is the longest line of a state file that is read, in bytes.
const maxReport = 4 << 20

// ErrBusy means that another process checks tasks with the same state folder.
var ErrBusy = errors.New("it is in use by another process")

// State stores the reports of finished checks in a folder, so that a later
// process does not repeat them.
type State struct {
	settings string

	mu   sync.Mutex
	file *os.File
	done map[string]Report
}

// Open opens and locks a state folder. It makes the folder if it is missing.
// settings describes everything besides the task on which the outcome of a check
// depends: reports that were made with other settings are not recalled.
func Open(dir, settings string) (*State, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, stateName), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the state of the checks: %w", err)
	}
	s := &State{settings: settings, file: f, done: map[string]Report{}}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("the state folder %s: %w", dir, ErrBusy)
	}
	if err := s.load(); err != nil {
		f.Close()
		return nil, fmt.Errorf("read the state of the checks: %w", err)
	}
	return s, nil
}

// load reads the finished checks. It removes an incomplete last line, which a
// killed process may leave.
func (s *State) load() error {
	lines := bufio.NewReaderSize(s.file, maxReport)
	var end int64
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return s.file.Truncate(end)
		}
		if err != nil {
			return err
		}
		end += int64(len(line))
		var r Report
		if json.Unmarshal(bytes.TrimSpace(line), &r) == nil && r.Key != "" {
			s.done[r.Key] = r
		}
	}
}

// key returns a hash of everything on which the outcome of a check depends.
func (s *State) key(t *tasks.Task) (string, error) {
	request, err := json.Marshal(t.Request)
	if err != nil {
		return "", fmt.Errorf("task %s: %w", t.Dir, err)
	}
	h := sha256.New()
	for _, part := range [][]byte{[]byte(s.settings), request, t.Bundle} {
		fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (s *State) recall(key string) (Report, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.done[key]
	return r, ok
}

func (s *State) keep(r Report) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep the check of %s: %w", r.Dir, err)
	}
	if len(line) >= maxReport {
		return nil // the check is repeated
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[r.Key] = r
	if _, err := s.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("keep the check of %s: %w", r.Dir, err)
	}
	return nil
}

// Close unlocks the folder for other processes.
func (s *State) Close() { s.file.Close() }
