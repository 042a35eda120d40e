package chaos_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/internal/testenv"
)

// TestNothingGrows runs wave after wave of rollouts and checks that the resources
// of workers and trainer between two waves do not grow with the number of waves.
// CHAOS_WAVE is the number of rollouts in a wave.
func TestNothingGrows(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	const waves, workers = 4, 2
	wave := setting(t, "CHAOS_WAVE", 4000)
	b := emptyBench(t, build(t))
	b.slots = 128
	b.begin(workers, nil, []string{"-harmless", "-wave", itoa(wave)})
	p := openTap(t, b)
	trainer := b.trainers[0]
	b.start(trainer)
	var first, last map[string]footprint
	for n := 1; n <= waves; n++ {
		b.await(trainer, history.Wave)
		last = map[string]footprint{}
		for _, p := range append(slices.Clone(b.workers), trainer) {
			last[p.role] = b.footprint(p)
		}
		if n == 1 {
			first = last // pools and tables are warm
		}
		t.Logf("after %d rollouts: %+v; NATS takes %d MB of memory and %d MB of disk", n*wave, last, resident(t, b.nats)>>20, stored(t, filepath.Join(b.dir, "nats"))>>20)
		if n == waves {
			b.write("enough")
		}
		b.write(fmt.Sprintf("wave-%d", n))
	}
	const perRollout = 100 // bytes
	for _, p := range append(slices.Clone(b.workers), trainer) {
		role := p.role
		was, is := first[role], last[role]
		if grown := is.heap - was.heap; grown > int64((waves-1)*wave*perRollout) {
			t.Errorf("%s: its heap has grown by %d bytes in %d rollouts", role, grown, (waves-1)*wave)
		}
		if grown := is.resident - was.resident; grown > was.resident/4+(32<<20) {
			t.Errorf("%s: it takes %d MB, at first %d MB", role, is.resident>>20, was.resident>>20)
		}
		if is.goroutines > was.goroutines+100 || is.files > was.files+10 {
			t.Errorf("%s: first %+v, then %+v", role, was, is)
			b.signal(p, syscall.SIGQUIT) // its goroutines go to its log
			<-p.ended
		}
	}
	conclude(t, b, p, time.Minute)
}

// write creates a file for which the trainer waits.
func (b *bench) write(name string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// stored returns the total size of the files in a folder, in bytes.
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
