package tasks

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

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
	p := packer{tar: tar.NewWriter(z), root: root, limits: newLimits()}
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
	tar    *tar.Writer
	root   *os.Root
	limits *limits
}

func (p *packer) add(rel string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: filepath.ToSlash(rel), Mode: int64(info.Mode().Perm()), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case info.Mode()&fs.ModeSymlink != 0:
		if h.Linkname, err = p.root.Readlink(rel); err != nil {
			return err
		}
		h.Typeflag = tar.TypeSymlink
	default:
		return p.file(rel, h)
	}
	return p.header(h)
}

func (p *packer) header(h *tar.Header) error {
	if _, err := p.limits.entry(h); err != nil {
		return err
	}
	return p.tar.WriteHeader(h)
}

func (p *packer) file(rel string, h *tar.Header) error {
	f, info, err := openRegular(p.root, rel)
	if err != nil {
		return &BundleError{fmt.Sprintf("%s: %v", rel, err)}
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.header(h); err != nil {
		return err
	}
	_, err = io.Copy(p.tar, f) // a file that grew meanwhile is an error of the archive
	return err
}
