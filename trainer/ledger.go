package trainer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/schema"
)

// ledger keeps what is outstanding in a file, one JSON object a line, so that
// a trainer that is started again still waits for it and can submit again what
// a broker lost. Without a path it keeps nothing.
type ledger struct {
	mu   sync.Mutex
	file *os.File
}

type entry struct {
	Submit  *schema.Request `json:"submit,omitempty"`
	Lane    int             `json:"lane,omitempty"`
	ID      schema.ID       `json:"id,omitempty"`
	Seq     uint64          `json:"seq,omitempty"`
	Attempt int             `json:"attempt,omitempty"`
	Done    bool            `json:"done,omitempty"`
}

// openLedger reads what the file has, rewrites it without what has ended, and
// holds a lock on it.
func openLedger(path string) (*ledger, map[schema.ID]*submitted, error) {
	out := map[schema.ID]*submitted{}
	if path == "" {
		return &ledger{}, out, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the trainer's state: %w", err)
	}
	l := &ledger{file: f}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("the trainer's state %s is in use by another process: %w", path, err)
	}
	if err := l.load(out); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("read the trainer's state %s: %w", path, err)
	}
	if err := l.rewrite(out); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("tidy the trainer's state %s: %w", path, err)
	}
	return l, out, nil
}

func (l *ledger) load(out map[schema.ID]*submitted) error {
	r := bufio.NewReaderSize(l.file, 1<<20)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what stands on a last line without an end was never confirmed
		}
		if err != nil {
			return err
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if e.Submit != nil {
			if err := e.Submit.Validate(); err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			out[e.Submit.ID] = &submitted{request: *e.Submit, lane: e.Lane, seq: e.Seq, attempt: e.Attempt}
			continue
		}
		if e.Done {
			delete(out, e.ID)
		} else if s := out[e.ID]; s != nil {
			s.seq, s.attempt = max(s.seq, e.Seq), max(s.attempt, e.Attempt)
		}
	}
}

// rewrite replaces the content in place: the lock is on this file.
func (l *ledger) rewrite(all map[schema.ID]*submitted) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, s := range all {
		if err := enc.Encode(entry{Submit: &s.request, Lane: s.lane, Seq: s.seq, Attempt: s.attempt}); err != nil {
			return err
		}
	}
	side := l.file.Name() + ".new"
	// The copy is whole on disk before the old content goes.
	if err := os.WriteFile(side, b.Bytes(), 0o600); err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	if _, err := l.file.Write(b.Bytes()); err != nil {
		return err
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	return os.Remove(side)
}

// write adds entries; if durable they are on disk when it returns.
func (l *ledger) write(durable bool, entries ...entry) error {
	if l.file == nil {
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, e := range entries {
		if err := enc.Encode(e); err != nil {
			return fmt.Errorf("write the trainer's state: %w", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write the trainer's state: %w", err)
	}
	if durable {
		if err := l.file.Sync(); err != nil {
			return fmt.Errorf("write the trainer's state: %w", err)
		}
	}
	return nil
}

func (l *ledger) close() {
	if l.file != nil {
		l.file.Close()
	}
}
