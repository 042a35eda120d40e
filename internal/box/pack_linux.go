package box

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/sandboxes"
)

// tarOut packs regular files and directories below path, and the symbolic links if they are
// wanted. It leaves out devices and the paths that are excluded.
func (w *walker) tarOut(path string, o sandboxes.TarOptions, to io.Writer) error {
	return w.tarTree(path, o, maxWalk, to)
}

// tarTree is tarOut with a bound of the files that it looks at.
func (w *walker) tarTree(path string, o sandboxes.TarOptions, most int, to io.Writer) error {
	excluded, err := sandboxes.NewExcluder(o.Exclude)
	if err != nil {
		return err
	}
	parent, name, err := w.file(path, true)
	if err != nil {
		return err
	}
	defer parent.close()
	top, err := parent.openFile(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return renamed(err, path)
	}
	defer top.Close()
	info, err := top.Stat()
	if err != nil {
		return renamed(err, path)
	}
	p := packer{
		out:      tar.NewWriter(&limitedWriter{w: to, left: o.Limit, err: &tooLargeError{path, o.Limit}}),
		excluded: excluded, links: o.Links, left: most,
		many: &tooLargeError{path + ": the list of its files", int64(most)},
		deep: fmt.Errorf("%s has folders more than %d levels deep", path, maxDepth),
	}
	switch {
	case info.IsDir():
		err = p.folder(top, ".", info, 0)
	case info.Mode().IsRegular():
		err = p.file(top, filepath.Base(path), info)
	}
	if err != nil {
		return err
	}
	return p.out.Close()
}

// packer packs a tree. It never holds the names of more files than its bound.
type packer struct {
	out        *tar.Writer
	excluded   sandboxes.Excluder
	links      bool
	left       int // files that it may still look at
	many, deep error
}

// folder packs an open folder and, in the order of their names, all files below
// it. It follows no link, and skips files that vanish or cannot be read.
func (p *packer) folder(dir *os.File, name string, info fs.FileInfo, depth int) error {
	if depth > maxDepth {
		return p.deep
	}
	h, err := tar.FileInfoHeader(nameless{info}, "")
	if err != nil {
		return err
	}
	h.Name = name + "/"
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	entries, _ := readDir(dir, p.left+1) // an error ends the list
	if p.left -= len(entries); p.left < 0 {
		return p.many
	}
	for _, e := range entries {
		link := p.links && e.Type() == fs.ModeSymlink
		if !e.IsDir() && !e.Type().IsRegular() && !link {
			continue
		}
		at := filepath.Join(name, e.Name())
		if p.excluded.Excludes(at) {
			continue
		}
		pack := p.entry
		if link {
			pack = p.link
		}
		if err := pack(dir, e.Name(), at, depth); err != nil {
			return err
		}
	}
	return nil
}

// link packs a symbolic link, unless it has vanished.
func (p *packer) link(dir *os.File, base, name string, _ int) error {
	to := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), base, to)
	if err != nil || n == len(to) {
		return nil //nolint:nilerr // it has vanished, or is another file by now
	}
	return p.out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: string(to[:n]), Mode: 0o777})
}

func (p *packer) entry(dir *os.File, base, name string, depth int) error {
	fd, err := unix.Openat(int(dir.Fd()), base, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil
	case info.IsDir():
		return p.folder(f, name, info, depth+1)
	case info.Mode().IsRegular():
		return p.file(f, name, info)
	}
	return nil
}

// file packs an open regular file. Its header announces the size, so a file that
// shrank is padded with zeros.
func (p *packer) file(f *os.File, name string, info fs.FileInfo) error {
	h, err := tar.FileInfoHeader(nameless{info}, "")
	if err != nil {
		return err
	}
	h.Name = name
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(p.out, io.LimitReader(f, h.Size))
	if err != nil {
		return err
	}
	_, err = io.CopyN(p.out, zeros{}, h.Size-n)
	return err
}
