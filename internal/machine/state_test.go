package machine_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/machine"
	"github.com/turngate/turngate/schema"
)

// TestOneProcessHasTheFolder: a second one is refused by name, until the first has ended.
func TestOneProcessHasTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	s, err := machine.Open(dir)
	harness.Must(t, err)
	if _, err := machine.Open(dir); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "--state") {
		t.Errorf("a second process: %v", err)
	}
	s.Close()
	s, err = machine.Open(dir)
	harness.Must(t, err)
	s.Close()
}

// TestTheEpochGrows: also if the clock is set back, and if the folder or its file is lost.
func TestTheEpochGrows(t *testing.T) {
	s, err := machine.Open(t.TempDir())
	harness.Must(t, err)
	defer s.Close()
	last := int64(0)
	epoch := func(now time.Time) {
		t.Helper()
		n, err := s.Epoch(now)
		if err != nil || n <= last {
			t.Errorf("the epoch %d after %d, %v", n, last, err)
		}
		last = n
	}
	now := time.Now()
	epoch(now)
	epoch(now)
	epoch(now.Add(-time.Hour))
	harness.Must(t, os.WriteFile(filepath.Join(s.Dir, "epoch"), []byte("rubbish"), 0o600))
	epoch(now.Add(time.Second))
	harness.Must(t, os.Remove(filepath.Join(s.Dir, "epoch")))
	epoch(now.Add(2 * time.Second))
}

func TestMeasure(t *testing.T) {
	s, err := machine.Open(t.TempDir())
	harness.Must(t, err)
	defer s.Close()
	var m schema.Machine
	s.Measure(&m)
	if m.CPUs < 1 || m.MemoryBytes < 1<<20 || m.FreeMemoryBytes < 1 || m.FreeMemoryBytes > m.MemoryBytes || m.FreeDiskBytes < 1 {
		t.Errorf("got %+v", m)
	}
	if l := machine.Load(); l.CPUs != m.CPUs || l.MemoryBytes != m.MemoryBytes || l.WorkerBytes < 1<<20 || l.WorkerBytes > l.MemoryBytes {
		t.Errorf("got %+v", l)
	}
}
