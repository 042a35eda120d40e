package tasks

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Bounds of an unpacked bundle.
const (
	maxFiles = 100_000
	maxSize  = 4 << 30  // bytes of its files
	maxNames = 16 << 20 // bytes of its names and links, which a worker holds in memory
	maxName  = 4096     // bytes of a name or a link, as in Linux
	// maxStream bounds the archive itself: a hostile one can have headers that add
	// nothing to the files.
	maxStream = maxSize + maxFiles*4<<10
	// maxWindow bounds the memory for unpacking, in bytes.
	maxWindow = 64 << 20
)

// BundleError reports a bundle that is not valid. The fault is the task's.
type BundleError struct{ Reason string }

func (e *BundleError) Error() string { return "task bundle: " + e.Reason }

// limits checks the entries of a bundle in their order.
type limits struct {
	files int
	size  int64
	names int
}

func newLimits() *limits { return &limits{files: maxFiles, size: maxSize, names: maxNames} }

// entry returns a checked entry with a clean name. Its errors are of type *BundleError.
func (l *limits) entry(h *tar.Header) (entry, error) {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return entry{}, &BundleError{fmt.Sprintf("the name %q is outside the bundle", h.Name)}
	}
	if l.files--; l.files < 0 {
		return entry{}, &BundleError{fmt.Sprintf("more than %d files", maxFiles)}
	}
	e := entry{name: name, kind: h.Typeflag, mode: h.Mode & 0o777}
	switch h.Typeflag {
	case tar.TypeDir:
	case tar.TypeSymlink:
		e.link = h.Linkname
		if err := checkLink(name, e.link); err != nil {
			return entry{}, err
		}
	case tar.TypeReg:
		e.size = h.Size
	default:
		return entry{}, &BundleError{fmt.Sprintf("%q is neither a file, a folder nor a link", h.Name)}
	}
	if max(len(e.name), len(e.link)) > maxName {
		return entry{}, &BundleError{fmt.Sprintf("a name of %d bytes: want at most %d", max(len(e.name), len(e.link)), maxName)}
	}
	if l.names -= len(e.name) + len(e.link); l.names < 0 {
		return entry{}, &BundleError{fmt.Sprintf("names of more than %d bytes together", maxNames)}
	}
	if l.size -= e.size; l.size < 0 {
		return entry{}, &BundleError{fmt.Sprintf("%s has %d bytes: the files of a task have at most %d bytes together", e.name, e.size, int64(maxSize))}
	}
	return e, nil
}

// checkLink refuses a link that leaves the bundle.
func checkLink(name, link string) error {
	target := path.Join(path.Dir(name), link)
	if path.IsAbs(link) || !filepath.IsLocal(target) {
		return &BundleError{fmt.Sprintf("the link %q points to %q, which is outside the bundle", name, link)}
	}
	return nil
}

// Unpack checks a bundle and writes its files for OpenUnpacked. A bundle that is not valid
// gives a *BundleError.
func Unpack(packed io.Reader, to io.Writer) error {
	from := &source{r: packed}
	z, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return from.blame(err)
	}
	defer z.Close()
	stream := &io.LimitedReader{R: z, N: maxStream}
	w := tar.NewWriter(to)
	limits := newLimits()
	for r := tar.NewReader(stream); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			if err := w.Close(); err != nil {
				return fmt.Errorf("unpack a task bundle: %w", err)
			}
			return nil
		case stream.N <= 0:
			return &BundleError{fmt.Sprintf("its archive has more than %d bytes", int64(maxStream))}
		case err != nil:
			return from.blame(err)
		}
		e, err := limits.entry(h)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(e.header()); err != nil {
			return fmt.Errorf("unpack %q of a task bundle: %w", e.name, err)
		}
		content := &source{r: r}
		if _, err := io.Copy(w, content); content.err != nil {
			return from.blame(content.err)
		} else if err != nil {
			return fmt.Errorf("unpack %q of a task bundle: %w", e.name, err)
		}
	}
}

// source notes the error of a reader, to tell it from others.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// blame returns the error of the source if it has one, and otherwise one of the bundle.
func (s *source) blame(err error) error {
	if s.err != nil {
		return fmt.Errorf("read a task bundle: %w", s.err)
	}
	return &BundleError{err.Error()}
}
