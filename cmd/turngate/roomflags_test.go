package main_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
)

// TestAWorkerWithoutRoomSaysSo: a host with less free memory than its worker wants runs
// nothing, and the operator reads the reason.
func TestAWorkerWithoutRoomSaysSo(t *testing.T) {
	p := newPerson(t)
	p.up(t, "--state", filepath.Join(t.TempDir(), "lab"), "--slots", "auto", "--keep-free-memory-mb", "1000000000")
	for _, args := range [][]string{{"worker", "ls", "--context", "up-lab"}, {"top", "--once", "--context", "up-lab"}} {
		harness.Eventually(t, "a worker that is full", 2*time.Minute, func() bool {
			got := p.turngate(t, args...)
			return got.code == 0 && strings.Contains(got.out, "full: ") && strings.Contains(got.out, "of its memory are free")
		})
	}
}

func TestWrongRoomIsRefused(t *testing.T) {
	p := newPerson(t)
	got := p.turngate(t, "up", "--slots", "many", "--keep-free-disk-mb", "-2")
	for _, want := range []string{`--slots: "many" is not valid: want a number of 1 or more, or auto`, "--keep-free-disk-mb: -2"} {
		if got.code != 2 || !strings.Contains(got.errOut, want) {
			t.Errorf("%+v\nwant %s", got, want)
		}
	}
}
