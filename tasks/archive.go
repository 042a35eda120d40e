package tasks

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
)

// tarBlock is the unit of a tar stream, which ends with two empty ones.
const tarBlock = 512

// archive is a folder of a bundle in the form of a tar stream. It has neither the
// headers nor the content in memory.
type archive struct {
	b     *Bundle
	dir   string
	parts []part // in the order of the stream
	size  int64
}

// part is an entry with the place of its header and of its content in the stream.
type part struct {
	entry       int
	at, content int64
}

// Tar returns the content of a folder of the bundle as a tar stream. It reads from the
// bundle, which must stay open.
func (b *Bundle) Tar(dir string) (*io.SectionReader, error) {
	a := &archive{b: b, dir: dir}
	for i := range b.entries {
		e := &b.entries[i]
		if name, ok := strings.CutPrefix(e.name, dir+"/"); !ok || name == "" {
			continue
		}
		header, err := a.header(e)
		if err != nil {
			return nil, err
		}
		p := part{entry: i, at: a.size, content: a.size + int64(len(header))}
		a.size = p.content + (e.size+tarBlock-1)/tarBlock*tarBlock
		a.parts = append(a.parts, p)
	}
	a.size += 2 * tarBlock
	return io.NewSectionReader(a, 0, a.size), nil
}

// header returns the header of an entry.
func (a *archive) header(e *entry) ([]byte, error) {
	h := e.header()
	if h.Name = strings.TrimPrefix(e.name, a.dir+"/"); e.kind == tar.TypeDir {
		h.Name += "/"
	}
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(h); err != nil {
		return nil, &BundleError{fmt.Sprintf("%q: %v", e.name, err)}
	}
	return out.Bytes(), nil
}

// ReadAt implements io.ReaderAt.
func (a *archive) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) && off < a.size && err == nil {
		var m int
		m, err = a.read(p[n:], off)
		n += m
		off += int64(m)
	}
	if err == nil && n < len(p) {
		err = io.EOF
	}
	return n, err
}

// read reads from one header, one content or one padding.
func (a *archive) read(p []byte, off int64) (int, error) {
	next := sort.Search(len(a.parts), func(i int) bool { return a.parts[i].at > off })
	end := a.size
	if next < len(a.parts) {
		end = a.parts[next].at
	}
	if next > 0 {
		part := a.parts[next-1]
		e := &a.b.entries[part.entry]
		if off < part.content {
			header, err := a.header(e)
			return copy(p, header[off-part.at:]), err
		}
		if at := off - part.content; at < e.size {
			p = p[:min(int64(len(p)), e.size-at)]
			n, err := a.b.file.ReadAt(p, e.at+at)
			switch {
			case n == len(p):
				err = nil
			case errors.Is(err, io.EOF):
				err = io.ErrUnexpectedEOF
			}
			return n, err
		}
	}
	p = p[:min(int64(len(p)), end-off)]
	clear(p)
	return len(p), nil
}
