package place

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/spool"
)

// TestTheLastLogOfAService writes pieces of many sizes and compares with the end of all.
func TestTheLastLogOfAService(t *testing.T) {
	t.Parallel()
	files := &record.Files{}
	defer files.Close()
	l := newLastLog(files)
	if !l.empty() || l.end(10) != "" {
		t.Fatal("a new log is not empty")
	}
	var all []byte
	for _, n := range []int{0, 1, 700_000, maxServiceLog - 700_001, 1, maxServiceLog, 3*maxServiceLog + 7, 100} {
		piece := harness.Noise(n)
		all = append(all, piece...)
		if wrote, err := l.Write(piece); wrote != n || err != nil {
			t.Fatalf("wrote %d of %d: %v", wrote, n, err)
		}
		want := all
		if len(all) > maxServiceLog {
			want = append([]byte("[…]\n"), all[len(all)-maxServiceLog:]...)
		}
		f := files.New()
		harness.Must(t, l.copyTo(f))
		r, err := f.Content()
		harness.Must(t, err)
		got, err := io.ReadAll(r)
		harness.Must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("after %d bytes: %d bytes, want %d", len(all), len(got), len(want))
		}
		if l.before.Size() > maxServiceLog || l.now.Size() > maxServiceLog {
			t.Fatalf("it has %d and %d bytes", l.before.Size(), l.now.Size())
		}
	}
	_, _ = l.Write([]byte("the end\n"))
	if l.empty() || l.end(7) != "he end" || !strings.HasSuffix(l.end(2000), "the end") {
		t.Errorf("its end: %q", l.end(20))
	}
	files.Close()
	var disk *spool.Error
	if err := l.copyTo(&spool.File{}); !errors.As(err, &disk) || !strings.Contains(l.end(10), "disk") {
		t.Errorf("closed: %v, %q", err, l.end(10))
	}
}
