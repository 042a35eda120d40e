package bundles_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stored is a bundle in the store of a trainer.
type stored struct {
	packed  []byte
	sha     string
	fetched atomic.Int32
}

// bundle returns a bundle of a file a with this text.
func bundle(t *testing.T, text string) *stored {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	harness.Must(t, err)
	w := tar.NewWriter(z)
	harness.Must(t, w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}))
	_, err = io.WriteString(w, text)
	harness.Must(t, errors.Join(err, w.Close(), z.Close()))
	return store(out.Bytes())
}

func store(packed []byte) *stored {
	sum := sha256.Sum256(packed)
	return &stored{packed: packed, sha: hex.EncodeToString(sum[:])}
}

func (s *stored) fetch(_ context.Context, to io.Writer) error {
	s.fetched.Add(1)
	_, err := to.Write(s.packed)
	return err
}

func cache(t *testing.T, dir string, limit int64) *bundles.Cache {
	t.Helper()
	c, err := bundles.New(dir, limit, zerolog.Nop())
	harness.Must(t, err)
	return c
}

func open(t *testing.T, c *bundles.Cache, s *stored) *tasks.Bundle {
	t.Helper()
	b, err := c.Open(t.Context(), "alpha", s.sha, s.fetch)
	harness.Must(t, err)
	return b
}

func content(t *testing.T, b *tasks.Bundle) string {
	t.Helper()
	data, err := io.ReadAll(b.File("a"))
	harness.Must(t, err)
	return string(data)
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	harness.Must(t, err)
	return all
}

func TestRolloutsShareABundle(t *testing.T) {
	dir := t.TempDir()
	c, s := cache(t, dir, 1<<20), bundle(t, "one")
	var all sync.WaitGroup
	opened := make([]*tasks.Bundle, 8)
	for i := range opened {
		all.Go(func() {
			b, err := c.Open(t.Context(), "alpha", s.sha, s.fetch)
			if err != nil {
				t.Error(err)
			}
			opened[i] = b
		})
	}
	all.Wait()
	for _, b := range opened {
		if got := content(t, b); got != "one" {
			t.Errorf("got %q", got)
		}
		harness.Must(t, b.Close())
	}
	harness.Must(t, open(t, c, s).Close())
	if got := c.Stats(); got.Fetched != 1 || got.Found != 8 || got.Bytes <= 0 {
		t.Errorf("got %+v", got)
	}
	harness.Must(t, open(t, cache(t, dir, 1<<20), s).Close()) // another process
	if n := s.fetched.Load(); n != 1 || len(files(t, dir)) != 1 {
		t.Errorf("fetched %d times, files %v", n, files(t, dir))
	}
}

func TestATrainerDoesNotGetTheBundleOfAnother(t *testing.T) {
	c, s := cache(t, t.TempDir(), 1<<20), bundle(t, "one")
	harness.Must(t, open(t, c, s).Close())
	missing := errors.New("beta has no such bundle")
	if _, err := c.Open(t.Context(), "beta", s.sha, func(context.Context, io.Writer) error { return missing }); !errors.Is(err, missing) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"../alpha", "a.b", ""} {
		if b, err := c.Open(t.Context(), name, s.sha, s.fetch); err == nil {
			t.Errorf("the trainer %q got %v", name, b)
		}
	}
}

func TestTheLongestUnusedBundleIsRemoved(t *testing.T) {
	dir := t.TempDir()
	c := cache(t, dir, 20_000) // each file has 10 KB and a bit
	one, two, three := bundle(t, strings.Repeat("1", 9000)), bundle(t, strings.Repeat("2", 9000)), bundle(t, strings.Repeat("3", 9000))
	harness.Must(t, open(t, c, one).Close())
	used := open(t, c, two)
	third := open(t, c, three)
	harness.Must(t, third.Close()) // one is the longest unused; two is in use
	harness.Must(t, open(t, c, three).Close())
	if len(files(t, dir)) != 1 || three.fetched.Load() != 2 {
		t.Errorf("files %v, three was fetched %d times", files(t, dir), three.fetched.Load())
	}
	harness.Must(t, used.Close())
	c = cache(t, dir, 1)
	if all := files(t, dir); len(all) != 0 {
		t.Errorf("a smaller limit leaves %v", all)
	}
	b := open(t, c, one)
	for _, f := range files(t, dir) {
		harness.Must(t, os.Remove(f))
	}
	if got := content(t, b); got != strings.Repeat("1", 9000) {
		t.Errorf("a removed bundle reads %q", got)
	}
	harness.Must(t, b.Close())
}

// TestANewBundleTakesTheRoomOfUnusedOnes: they do not wait for the end of the rollout
// that uses the new one.
func TestANewBundleTakesTheRoomOfUnusedOnes(t *testing.T) {
	dir := t.TempDir()
	c := cache(t, dir, 20_000) // each file has 10 KB and a bit
	one, two := bundle(t, strings.Repeat("1", 9000)), bundle(t, strings.Repeat("2", 9000))
	harness.Must(t, open(t, c, one).Close())
	b := open(t, c, two)
	if all := files(t, dir); len(all) != 1 || !strings.Contains(all[0], two.sha) {
		t.Errorf("files %v", all)
	}
	harness.Must(t, b.Close())
}

// TestAFullDisk: the limit may be larger than the disk.
func TestAFullDisk(t *testing.T) {
	dir := t.TempDir()
	c := cache(t, dir, 1<<20)
	unused, used, s := bundle(t, "unused"), bundle(t, "used"), bundle(t, "one")
	harness.Must(t, open(t, c, unused).Close())
	kept := open(t, c, used)
	b, err := c.Open(t.Context(), "alpha", s.sha, func(ctx context.Context, to io.Writer) error {
		if len(files(t, dir)) > 1 {
			return &os.PathError{Op: "write", Path: dir, Err: syscall.ENOSPC}
		}
		return s.fetch(ctx, to)
	})
	harness.Must(t, err)
	if got := content(t, b) + content(t, kept); got != "oneused" {
		t.Errorf("got %q", got)
	}
	harness.Must(t, errors.Join(b.Close(), kept.Close()))
	full := bundle(t, "two")
	if _, err := c.Open(t.Context(), "alpha", full.sha, func(context.Context, io.Writer) error { return syscall.ENOSPC }); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
}

func TestADamagedBundleIsFetchedAgain(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"changed": func(path string) error {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			data[512]++
			return os.WriteFile(path, data, 0o600)
		},
		"cut":  func(path string) error { return os.Truncate(path, 700) },
		"gone": os.Remove,
	} {
		for _, restarted := range []bool{false, true} {
			dir := t.TempDir()
			c, s := cache(t, dir, 1<<20), bundle(t, "one")
			harness.Must(t, open(t, c, s).Close())
			harness.Must(t, damage(files(t, dir)[0]))
			if restarted {
				c = cache(t, dir, 1<<20)
			}
			b := open(t, c, s)
			if got := content(t, b); got != "one" || s.fetched.Load() != 2 || len(files(t, dir)) != 1 {
				t.Errorf("%s, restarted %t: got %q after %d fetches", name, restarted, got, s.fetched.Load())
			}
			harness.Must(t, b.Close())
		}
	}
}

func TestAFailedOpenLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	c, s := cache(t, dir, 1<<20), bundle(t, "one")
	var bad *tasks.BundleError
	broken := store([]byte("no bundle"))
	if _, err := c.Open(t.Context(), "alpha", broken.sha, broken.fetch); !errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
	ended := errors.New("the rollout is cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := c.Open(ctx, "alpha", s.sha, func(ctx context.Context, to io.Writer) error {
		cancel(ended)
		return s.fetch(ctx, to)
	})
	if !errors.Is(err, ended) || errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
	if all := files(t, dir); len(all) != 0 {
		t.Errorf("files are left: %v", all)
	}
	harness.Must(t, open(t, c, s).Close())
}

// TestAWaiterFetchesAfterACancelledRollout: the second of two rollouts that want a
// bundle fetches it when the first one is cancelled.
func TestAWaiterFetchesAfterACancelledRollout(t *testing.T) {
	c, s := cache(t, t.TempDir(), 1<<20), bundle(t, "one")
	ctx, cancel := context.WithCancel(t.Context())
	fetching, first := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := c.Open(ctx, "alpha", s.sha, func(ctx context.Context, _ io.Writer) error {
			close(fetching)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		first <- err
	}()
	<-fetching
	second := make(chan *tasks.Bundle, 1)
	go func() {
		b, err := c.Open(t.Context(), "alpha", s.sha, s.fetch)
		if err != nil {
			t.Error(err)
		}
		second <- b
	}()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	b := <-second
	if got := content(t, b); got != "one" {
		t.Errorf("got %q", got)
	}
	harness.Must(t, b.Close())
}

func TestPartsOfAKilledProcessAreRemoved(t *testing.T) {
	dir := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(dir, "part-1"), []byte("x"), 0o600))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "README"), []byte("x"), 0o600))
	cache(t, dir, 0)
	if all := files(t, dir); len(all) != 1 || filepath.Base(all[0]) != "README" {
		t.Errorf("files %v", all)
	}
}
