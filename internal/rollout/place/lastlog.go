package place

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/spool"
)

// maxServiceLog is the maximum number of bytes kept of a service's output. The
// last ones are kept.
const maxServiceLog = 1 << 20

// lastLog keeps the end of a service's output in two files, which take turns.
type lastLog struct {
	mu          sync.Mutex
	before, now *spool.File // before is empty or full
	dropped     bool
}

func newLastLog(files *record.Files) *lastLog {
	return &lastLog{before: files.New(), now: files.New()}
}

// Write never fails, as that of the files.
func (l *lastLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := p; len(rest) > 0; {
		room := maxServiceLog - l.now.Size()
		if room <= 0 {
			l.dropped = l.dropped || l.before.Size() > 0
			l.before.Reset()
			l.before, l.now = l.now, l.before
			continue
		}
		n := min(int(room), len(rest))
		_, _ = l.now.Write(rest[:n])
		rest = rest[n:]
	}
	return len(p), nil
}

// last returns the last bytes, at most limit, and whether there were more. The caller
// holds the mutex while it reads them.
func (l *lastLog) last(limit int64) (_ io.Reader, cut bool, err error) {
	before, err := l.before.Content()
	if err != nil {
		return nil, false, err
	}
	now, err := l.now.Content()
	if err != nil {
		return nil, false, err
	}
	skip := max(before.Size()+now.Size()-limit, 0)
	at := min(skip, before.Size())
	both := io.MultiReader(io.NewSectionReader(before, at, before.Size()-at), io.NewSectionReader(now, skip-at, now.Size()-(skip-at)))
	return both, l.dropped || skip > 0, nil
}

// copyTo writes the kept bytes into a file, below a mark if there were more.
func (l *lastLog) copyTo(f *spool.File) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, cut, err := l.last(maxServiceLog)
	if err == nil && cut {
		_, err = io.WriteString(f, "[…]\n")
	}
	if err == nil {
		_, err = io.Copy(f, r)
	}
	if err != nil {
		return fmt.Errorf("read the output of a service: %w", err)
	}
	return nil
}

func (l *lastLog) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.before.Size()+l.now.Size() == 0
}

// end returns the end of the output, at most limit bytes, or the error of the disk.
func (l *lastLog) end(limit int64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, _, err := l.last(limit)
	if err != nil {
		return err.Error()
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(data))
}
