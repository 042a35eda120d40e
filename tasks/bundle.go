package tasks

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Bundle reads the files of a task from a file. Every name and link
// in it has been checked to stay inside the bundle. Only names are in memory. The zero
// Bundle has no files. Its methods are safe for concurrent use until Close.
type Bundle struct {
	file    io.ReaderAt
	entries []entry // in the order of the file
	close   func() error
}

// entry is a file, a folder or a link.
type entry struct {
	name, link string
	kind       byte // as in tar.Header.Typeflag
	mode       int64
	at, size   int64 // of the content in the bundle's file
}

func (e *entry) header() *tar.Header {
	return &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Linkname: e.link, Size: e.size}
}

// Open unpacks a bundle into a temporary file without a name, which Close removes. A
// bundle that is not valid gives a *BundleError.
func Open(packed []byte) (_ *Bundle, err error) {
	file, err := os.CreateTemp("", "turngate-bundle-")
	if err != nil {
		return nil, fmt.Errorf("open a task bundle: %w", err)
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	if err := os.Remove(file.Name()); err != nil {
		return nil, fmt.Errorf("open a task bundle: %w", err)
	}
	out := bufio.NewWriterSize(file, 64<<10)
	if err := errors.Join(Unpack(bytes.NewReader(packed), out), out.Flush()); err != nil {
		return nil, err
	}
	return OpenUnpacked(file)
}

// OpenUnpacked opens a file that Unpack wrote. Close closes the file. An error of type
// *BundleError means that Unpack did not write it.
func OpenUnpacked(file *os.File) (*Bundle, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("open a task bundle: %w", err)
	}
	b := &Bundle{file: file, close: file.Close}
	from := io.NewSectionReader(file, 0, info.Size())
	limits := newLimits()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, &BundleError{err.Error()}
		}
		e, err := limits.entry(h)
		if err != nil {
			return nil, err
		}
		if e.at, err = from.Seek(0, io.SeekCurrent); err != nil { // a tar.Reader does not read ahead
			return nil, fmt.Errorf("open a task bundle: %w", err)
		}
		if e.at+e.size > info.Size() {
			return nil, &BundleError{fmt.Sprintf("the file ends inside of %q", e.name)}
		}
		b.entries = append(b.entries, e)
	}
}

// Shared returns a bundle with the same files and a Close of its own, which calls
// closed. The files must stay open until then.
func (b *Bundle) Shared(closed func() error) *Bundle {
	return &Bundle{file: b.file, entries: b.entries, close: closed}
}

// Close ends the use of the bundle. It is called once.
func (b *Bundle) Close() error {
	if b.close == nil {
		return nil
	}
	return b.close()
}

// Has reports whether a file or a folder of this name is in the bundle.
func (b *Bundle) Has(name string) bool {
	return slices.ContainsFunc(b.entries, func(e entry) bool {
		return e.name == name || strings.HasPrefix(e.name, name+"/")
	})
}

// File returns the content of a regular file; nil if there is none of this name.
func (b *Bundle) File(name string) *io.SectionReader {
	for i := range b.entries {
		if e := &b.entries[i]; e.name == name && e.kind == tar.TypeReg {
			return io.NewSectionReader(b.file, e.at, e.size)
		}
	}
	return nil
}
