package tasks_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/tasks"
)

// archived returns a packed bundle with these files.
func archived(t testing.TB, files map[string][]byte, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	harness.Must(t, err)
	w := tar.NewWriter(z)
	for _, name := range names {
		harness.Must(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o640, Size: int64(len(files[name]))}))
		_, err := w.Write(files[name])
		harness.Must(t, err)
	}
	harness.Must(t, errors.Join(w.Close(), z.Close()))
	return out.Bytes()
}

// TestAFolderOfABundleIsReadLikeItsTar reads the tar stream of a folder in pieces of
// many sizes and places, and compares it with the one that archive/tar writes.
func TestAFolderOfABundleIsReadLikeItsTar(t *testing.T) {
	long := "tests/" + strings.Repeat("deep/", 60) + "file" // its header has several blocks
	files := map[string][]byte{"tests/a": []byte("one"), "tests/b": nil, "other": []byte("x"), "tests/c": bytes.Repeat([]byte("0123456789"), 10_000), long: bytes.Repeat([]byte("y"), 512)}
	b, err := tasks.Open(archived(t, files, "tests/a", "tests/b", "other", "tests/c", long))
	harness.Must(t, err)
	defer b.Close()
	var want bytes.Buffer
	w := tar.NewWriter(&want)
	for _, name := range []string{"tests/a", "tests/b", "tests/c", long} {
		harness.Must(t, w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "tests/"), Typeflag: tar.TypeReg, Mode: 0o640, Size: int64(len(files[name]))}))
		_, err := w.Write(files[name])
		harness.Must(t, err)
	}
	harness.Must(t, w.Close())
	got, err := b.Tar("tests")
	harness.Must(t, err)
	if got.Size() != int64(want.Len()) {
		t.Fatalf("%d bytes, want %d", got.Size(), want.Len())
	}
	harness.Must(t, iotest.TestReader(got, want.Bytes()))
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		p := make([]byte, random.IntN(3000))
		off := random.Int64N(got.Size() + 10)
		n, err := got.ReadAt(p, off)
		rest := want.Bytes()[min(off, got.Size()):]
		if !bytes.Equal(p[:n], rest[:min(len(p), len(rest))]) || (err != nil) != (n < len(p)) || err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%d bytes at %d: got %d, %v", len(p), off, n, err)
		}
	}
	if empty, err := b.Tar("none"); err != nil || empty.Size() != 1024 {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// huge writes the headers and the content of many files as a packed bundle.
func huge(t *testing.T, write func(w *tar.Writer) error) io.Reader {
	t.Helper()
	r, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		z, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err == nil {
			w := tar.NewWriter(z)
			if err = write(w); err == nil {
				err = errors.Join(w.Close(), z.Close())
			}
		}
		to.CloseWithError(err)
	}()
	t.Cleanup(func() { r.Close(); <-done })
	return r
}

// TestUnpackingIsBounded checks that bundles that grow without end are refused before
// they are in memory or on the disk.
func TestUnpackingIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		write func(w *tar.Writer) error
		want  string
	}{
		"files": {func(w *tar.Writer) error {
			for i := range 100_001 {
				if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeReg}); err != nil {
					return err
				}
			}
			return nil
		}, "more than 100000 files"},
		"bytes": {func(w *tar.Writer) error {
			return w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Size: 4<<30 + 1})
		}, "zeros has 4294967297 bytes"},
		"long names": {func(w *tar.Writer) error {
			return w.WriteHeader(&tar.Header{Name: strings.Repeat("n", 5000), Typeflag: tar.TypeReg})
		}, "a name of 5000 bytes"},
		"many names": {func(w *tar.Writer) error {
			for i := range 5000 {
				if err := w.WriteHeader(&tar.Header{Name: strings.Repeat("n", 4000) + fmt.Sprint(i), Typeflag: tar.TypeReg}); err != nil {
					return err
				}
			}
			return nil
		}, "names of more than 16777216 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var bad *tasks.BundleError
			if err := tasks.Unpack(huge(t, c.write), io.Discard); !errors.As(err, &bad) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAnErrorOfTheSourceIsNotTheBundles(t *testing.T) {
	packed := archived(t, map[string][]byte{"a": bytes.Repeat([]byte("x"), 100_000)}, "a")
	broken := errors.New("the disk is gone")
	var bad *tasks.BundleError
	err := tasks.Unpack(io.MultiReader(bytes.NewReader(packed[:len(packed)/2]), iotest.ErrReader(broken)), io.Discard)
	if !errors.Is(err, broken) || errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
	if err := tasks.Unpack(bytes.NewReader(packed[:len(packed)/2]), io.Discard); !errors.As(err, &bad) {
		t.Errorf("half of a bundle: %v", err)
	}
}
