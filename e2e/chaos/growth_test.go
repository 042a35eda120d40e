package chaos_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
)

// TestNothingGrows runs wave after wave of rollouts. What workers and trainer
// have in use between two waves does not depend on how many there were.
// CHAOS_WAVE says how many rollouts a wave has.
func TestNothingGrows(t *testing.T) {
	full(t)
	const waves, workers = 4, 2
	wave := setting(t, "CHAOS_WAVE", 4000)
	b := emptyBench(t, build(t))
	b.slots = 128
	b.begin(workers, nil, []string{"-harmless", "-wave", itoa(wave)})
	p := openTap(t, b)
	b.start(b.trainer)
	var first, last map[string]history.Footprint
	for n := 1; n <= waves; n++ {
		last = map[string]history.Footprint{"trainer": b.footprint(b.trainer)}
		for _, w := range b.workers {
			b.signal(w, syscall.SIGUSR1)
			last[w.role] = b.footprint(w)
		}
		if n == 1 {
			first = last // pools and tables are warm
		}
		t.Logf("after %d rollouts: %+v; NATS takes %s of memory and %d MB of disk", n*wave, last, resident(t, b.nats), stored(t, filepath.Join(b.dir, "nats"))>>20)
		if n == waves {
			b.write("enough")
		}
		b.write(fmt.Sprintf("wave-%d", n))
	}
	const perRollout = 100 // bytes
	for _, p := range append(b.workers, b.trainer) {
		role := p.role
		was, is := first[role], last[role]
		if grown := is.Heap - was.Heap; grown > int64((waves-1)*wave*perRollout) {
			t.Errorf("%s: its heap has grown by %d bytes in %d rollouts", role, grown, (waves-1)*wave)
		}
		if is.Goroutines > was.Goroutines+100 || is.Files > was.Files+10 {
			t.Errorf("%s: first %+v, then %+v", role, was, is)
			b.signal(p, syscall.SIGQUIT) // its goroutines go to its log
			<-p.ended
		}
	}
	settle(t, b, p, time.Minute)
}

// write makes a file that the trainer looks for.
func (b *bench) write(name string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// footprint is what a process tells of itself.
func (b *bench) footprint(p *process) history.Footprint {
	b.t.Helper()
	var f history.Footprint
	line := b.await(p, history.FootprintLine)
	if err := json.Unmarshal([]byte(strings.TrimPrefix(line, history.FootprintLine)), &f); err != nil {
		b.t.Fatalf("%s: %v", line, err)
	}
	return f
}

// stored is how many bytes the files of a folder have.
func stored(t *testing.T, dir string) (size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // the server has just removed it
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// resident is the memory that a process has, in the kernel's words.
func resident(t *testing.T, p *process) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(data), "VmRSS:")
	size, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(size)
}
