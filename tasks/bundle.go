package tasks

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Bounds of an unpacked bundle.
const (
	maxFiles = 100_000
	maxSize  = 512 << 20 // bytes
)

// BundleError reports a bundle that is not valid. The fault is the task's.
type BundleError struct{ Reason string }

func (e *BundleError) Error() string { return "task bundle: " + e.Reason }

// pack makes a tar.zst of the named folders and files of a task. The same
// files give the same bytes: names are sorted, times and owners are left out.
func pack(dir string, tops []string) ([]byte, error) {
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("pack the task: %w", err)
	}
	root, err := folder{dir}.root()
	if err != nil {
		return nil, fmt.Errorf("pack the task: %w", err)
	}
	defer root.Close()
	p := packer{tar: tar.NewWriter(z), root: root, left: maxSize}
	for _, top := range tops {
		err := filepath.WalkDir(filepath.Join(dir, top), func(at string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) && d == nil {
				return nil // the task does not have this folder or file
			}
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(dir, at)
			if err != nil {
				return err
			}
			if rel == top && !d.IsDir() {
				return &BundleError{top + " is not a folder"}
			}
			return p.add(rel, d)
		})
		if err != nil {
			return nil, fmt.Errorf("pack the task: %w", err)
		}
	}
	if err := errors.Join(p.tar.Close(), z.Close()); err != nil {
		return nil, fmt.Errorf("pack the task: %w", err)
	}
	return out.Bytes(), nil
}

// packer adds the files of a task to an archive, up to the bounds of a bundle.
type packer struct {
	tar   *tar.Writer
	root  *os.Root
	files int
	left  int64 // bytes
}

func (p *packer) add(rel string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if p.files++; p.files > maxFiles {
		return &BundleError{fmt.Sprintf("more than %d files", maxFiles)}
	}
	h := &tar.Header{Name: filepath.ToSlash(rel), Mode: int64(info.Mode().Perm()), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		return p.tar.WriteHeader(h)
	case info.Mode()&fs.ModeSymlink != 0:
		if h.Linkname, err = p.root.Readlink(rel); err != nil {
			return err
		}
		h.Typeflag = tar.TypeSymlink
		if err := checkLink(h); err != nil {
			return err
		}
		return p.tar.WriteHeader(h)
	default:
		return p.file(rel, h)
	}
}

func (p *packer) file(rel string, h *tar.Header) error {
	f, info, err := openRegular(p.root, rel)
	if err != nil {
		return &BundleError{fmt.Sprintf("%s: %v", rel, err)}
	}
	defer f.Close()
	if p.left -= info.Size(); p.left < 0 {
		return &BundleError{fmt.Sprintf("%s has %d bytes: the files of a task have at most %d bytes together", rel, info.Size(), int64(maxSize))}
	}
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(p.tar, f) // a file that grew meanwhile is an error of the archive
	return err
}

// checkLink refuses a link that leaves the bundle.
func checkLink(h *tar.Header) error {
	target := path.Join(path.Dir(h.Name), h.Linkname)
	if path.IsAbs(h.Linkname) || !filepath.IsLocal(target) {
		return &BundleError{fmt.Sprintf("the link %q points to %q, which is outside the bundle", h.Name, h.Linkname)}
	}
	return nil
}

// Bundle holds the files of a task. Every name and link in it has been checked
// to stay inside the bundle.
type Bundle struct {
	entries []entry
}

type entry struct {
	h    tar.Header
	data []byte
}

// Open reads and checks a bundle. Its errors are of type *BundleError.
func Open(data []byte) (*Bundle, error) {
	z, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSize), zstd.WithDecoderMaxWindow(64<<20))
	if err != nil {
		return nil, &BundleError{err.Error()}
	}
	defer z.Close()
	b, left := &Bundle{}, int64(maxSize)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, &BundleError{err.Error()}
		}
		if len(b.entries) == maxFiles {
			return nil, &BundleError{fmt.Sprintf("more than %d files", maxFiles)}
		}
		e, err := readEntry(h, r, left)
		if err != nil {
			return nil, err
		}
		left -= int64(len(e.data))
		b.entries = append(b.entries, e)
	}
}

func readEntry(h *tar.Header, r io.Reader, left int64) (entry, error) {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return entry{}, &BundleError{fmt.Sprintf("the name %q is outside the bundle", h.Name)}
	}
	e := entry{h: tar.Header{Name: name, Typeflag: h.Typeflag, Mode: h.Mode & 0o777, Linkname: h.Linkname}}
	switch h.Typeflag {
	case tar.TypeDir:
	case tar.TypeSymlink:
		if err := checkLink(&e.h); err != nil {
			return entry{}, err
		}
	case tar.TypeReg:
		if h.Size > left {
			return entry{}, &BundleError{fmt.Sprintf("more than %d bytes unpacked", int64(maxSize))}
		}
		data, err := io.ReadAll(io.LimitReader(r, left+1))
		if err != nil {
			return entry{}, &BundleError{err.Error()}
		}
		e.data, e.h.Size = data, int64(len(data))
	default:
		return entry{}, &BundleError{fmt.Sprintf("%q is neither a file, a folder nor a link", h.Name)}
	}
	return e, nil
}

// Has says whether a file or a folder of this name is in the bundle.
func (b *Bundle) Has(name string) bool {
	return slices.ContainsFunc(b.entries, func(e entry) bool {
		return e.h.Name == name || strings.HasPrefix(e.h.Name, name+"/")
	})
}

// Read returns a regular file.
func (b *Bundle) Read(name string) ([]byte, bool) {
	for _, e := range b.entries {
		if e.h.Name == name && e.h.Typeflag == tar.TypeReg {
			return e.data, true
		}
	}
	return nil, false
}

// Tar returns the content of a folder of the bundle as a tar stream.
func (b *Bundle) Tar(dir string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range b.entries {
		name, ok := strings.CutPrefix(e.h.Name, dir+"/")
		if !ok || name == "" {
			continue
		}
		h := e.h
		if h.Name = name; h.Typeflag == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, &BundleError{err.Error()}
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, &BundleError{err.Error()}
		}
	}
	if err := w.Close(); err != nil {
		return nil, &BundleError{err.Error()}
	}
	return out.Bytes(), nil
}
