package trainer

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/internal/owned"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// ledger keeps the outstanding rollouts in a file, one JSON object per line.
// After a restart the trainer still waits for them and can submit again any
// that the broker lost. Without a path it keeps nothing.
type ledger struct {
	owner string // random name of the file; empty: there is no file
	shard string // of the process that has the file; while it is read, of the one before
	mu    sync.Mutex
	file  *os.File
}

type entry struct {
	Owner   string          `json:"owner,omitempty"`
	Shard   string          `json:"shard,omitempty"` // with Owner; empty: the default
	Submit  *schema.Request `json:"submit,omitempty"`
	Lane    int             `json:"lane,omitempty"`
	ID      schema.ID       `json:"id,omitempty"`
	Seq     uint64          `json:"seq,omitempty"`
	Attempt int             `json:"attempt,omitempty"`
	Done    bool            `json:"done,omitempty"`
}

// openLedger locks the file, reads its entries, and rewrites it without the
// ended rollouts. Rollouts with the shard of the process before get this process's shard.
func openLedger(path, shard string, log zerolog.Logger) (*ledger, map[schema.ID]*submitted, error) {
	out := map[schema.ID]*submitted{}
	if path == "" {
		return &ledger{}, out, nil
	}
	if err := owned.Check(path); err != nil {
		return nil, nil, fmt.Errorf("open the trainer's state: %w", err)
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
	if err := l.loadNewest(out); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("read the trainer's state %s: %w", path, err)
	}
	l.owner = cmp.Or(l.owner, newInstance())
	if n := l.move(out, shard); n > 0 {
		log.Warn().Int("rollouts", n).Msg("the state file is of a process with another shard: its open rollouts have this one's from now on, but the running ones send their calls to that shard")
	}
	if err := l.rewrite(out); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("tidy the trainer's state %s: %w", path, err)
	}
	return l, out, nil
}

// move gives rollouts the shard of this process if they have that of the one before. It
// returns their number.
func (l *ledger) move(all map[schema.ID]*submitted, shard string) (moved int) {
	before := cmp.Or(l.shard, schema.DefaultShard)
	l.shard = shard
	if before == shard {
		return 0
	}
	for _, s := range all {
		if shardOf(&s.request) == before {
			s.request.Shard = shard
			moved++
		}
	}
	return moved
}

// loadNewest reads the whole copy that an interrupted rewrite has left, or else
// the file.
func (l *ledger) loadNewest(out map[schema.ID]*submitted) error {
	side, err := os.Open(l.side())
	if errors.Is(err, os.ErrNotExist) {
		return l.load(l.file, out)
	}
	if err != nil {
		return err
	}
	defer side.Close()
	return l.load(side, out)
}

func (l *ledger) load(from io.Reader, out map[schema.ID]*submitted) error {
	r := bufio.NewReaderSize(from, 1<<20)
	for n := 1; ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // a last line without a line break was never confirmed
		}
		if err != nil {
			return err
		}
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("line %d: %w", n, rawjson.Plain(err))
		}
		if e.Owner != "" {
			l.owner, l.shard = e.Owner, e.Shard
			continue
		}
		if e.Submit != nil {
			if err := schema.Validate(e.Submit); err != nil {
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

// side is the path of the copy during a rewrite. Under this name it is whole.
func (l *ledger) side() string { return l.file.Name() + ".new" }

// rewrite replaces the content in place, because the lock is on this file.
func (l *ledger) rewrite(all map[schema.ID]*submitted) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if err := enc.Encode(entry{Owner: l.owner, Shard: l.shard}); err != nil {
		return err
	}
	for _, s := range all {
		if err := enc.Encode(entry{Submit: &s.request, Lane: s.lane, Seq: s.seq, Attempt: s.attempt}); err != nil {
			return err
		}
	}
	// The copy must be whole on disk before the old content is truncated.
	if err := l.keepCopy(b.Bytes()); err != nil {
		return err
	}
	crash.Here("ledger.copied")
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	crash.Here("ledger.truncated")
	if _, err := l.file.Write(b.Bytes()); err != nil {
		return err
	}
	if err := l.file.Sync(); err != nil {
		return err
	}
	crash.Here("ledger.rewritten")
	return os.Remove(l.side())
}

// keepCopy stores data under the side's name, whole or not at all.
func (l *ledger) keepCopy(data []byte) error {
	part, err := os.OpenFile(l.side()+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = part.Write(data)
	if err = errors.Join(err, part.Sync(), part.Close()); err != nil {
		return err
	}
	if err := os.Rename(part.Name(), l.side()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(l.file.Name()))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// write appends entries; durable entries are on disk when it returns.
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
	if !durable {
		crash.Here("ledger.noted")
		return nil
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("write the trainer's state: %w", err)
	}
	crash.Here("ledger.submitted")
	return nil
}

func (l *ledger) close() {
	if l.file != nil {
		l.file.Close()
	}
}
