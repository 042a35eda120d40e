package spool_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/spool"
)

func content(t *testing.T, f *spool.File) []byte {
	t.Helper()
	r, err := f.Content()
	harness.Must(t, err)
	data, err := io.ReadAll(r)
	harness.Must(t, err)
	if int64(len(data)) != f.Size() || r.Size() != f.Size() {
		t.Errorf("got %d bytes of %d, and the reader has %d", len(data), f.Size(), r.Size())
	}
	return data
}

// TestAFileHasWhatWasWritten writes pieces of many sizes and reads in between.
func TestAFileHasWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	folder, err := spool.Open(filepath.Join(dir, "a", "b"))
	harness.Must(t, err)
	f := folder.New()
	defer f.Close()
	var want []byte
	for _, n := range []int{0, 1, 100, 65_000, 435, 1, 64 << 10, 3, 200_000, 7} {
		piece := harness.Noise(n)
		want = append(want, piece...)
		if wrote, err := f.Write(piece); wrote != n || err != nil {
			t.Fatalf("wrote %d of %d: %v", wrote, n, err)
		}
		if !bytes.Equal(content(t, f), want) {
			t.Fatalf("it changed before byte %d", len(want))
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "a", "b")); err != nil || len(left) != 0 {
		t.Errorf("the folder has %v, %v", left, err)
	}
	f.Reset()
	_, _ = f.Write([]byte("other"))
	if got := content(t, f); string(got) != "other" {
		t.Errorf("got %q after a reset", got)
	}
}

func TestAClosedFileIsEmpty(t *testing.T) {
	var none *spool.Folder
	f := none.New()
	_, _ = f.Write(make([]byte, 100_000))
	f.Close()
	f.Close()
	_, _ = f.Write([]byte("late"))
	if _, err := f.Content(); !errors.Is(err, os.ErrClosed) || f.Size() != 0 {
		t.Errorf("got %v, %d bytes", err, f.Size())
	}
}

// TestAReadThatFails: a reader that is used after the end of its file tells that it is
// the worker's disk.
func TestAReadThatFails(t *testing.T) {
	var none *spool.Folder
	f := none.New()
	_, _ = f.Write(make([]byte, 100_000))
	r, err := f.Content()
	harness.Must(t, err)
	f.Close()
	var failed *spool.Error
	if _, err := io.ReadAll(r); !errors.As(err, &failed) {
		t.Errorf("got %v", err)
	}
}

// TestFilesOfAKilledProcessAreRemoved: others in the folder stay.
func TestFilesOfAKilledProcessAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"spool-123", "mine"} {
		harness.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	_, err := spool.Open(dir)
	harness.Must(t, err)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "mine" {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestADiskThatFails: the first error stays, also after later writes.
func TestADiskThatFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	folder, err := spool.Open(dir)
	harness.Must(t, err)
	f := folder.New()
	defer f.Close()
	_, _ = f.Write([]byte("in memory"))
	harness.Must(t, os.RemoveAll(dir))
	for range 3 {
		if n, err := f.Write(make([]byte, 100_000)); n != 100_000 || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	var failed *spool.Error
	if _, err := f.Content(); !errors.As(err, &failed) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
