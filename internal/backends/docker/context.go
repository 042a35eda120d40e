package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/moby/patternmatcher/ignorefile"
	"github.com/tonistiigi/fsutil"
	"github.com/tonistiigi/fsutil/types"

	"github.com/turngate/turngate/sandboxes"
)

// contextFS is a build context. It implements fsutil.FS.
type contextFS struct {
	from  contextReader
	names []string // in the order of Walk
	files map[string]contextFile
}

type contextFile struct {
	stat *types.Stat
	at   int64 // of its content in the tar stream
}

// contextReader reads the tar stream of a context. It notes an error, which is no fault
// of the task. One is that the owner of the context has closed it: the rollout that began
// a build may end before another that waits for the same build.
type contextReader struct {
	sandboxes.Content
	failed *atomic.Pointer[error]
}

func (r contextReader) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.Content.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		r.failed.Store(&err)
	}
	return n, err
}

// contextTime is the modification time of every file of a context. Archives
// such as Python wheels cannot store times before 1980.
func contextTime() int64 { return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() }

// readContext reads a tar stream of files, folders and symbolic links.
func readContext(from contextReader) (*contextFS, error) {
	c := &contextFS{from: from, files: map[string]contextFile{}}
	stream := io.NewSectionReader(from, 0, from.Size())
	for r := tar.NewReader(stream); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the build context: %w", err)
		}
		name := path.Clean(h.Name)
		if name == "." {
			continue
		}
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("read the build context: the name %q leaves it", h.Name)
		}
		f := contextFile{stat: &types.Stat{Path: name, Mode: uint32(h.FileInfo().Mode()), ModTime: contextTime(), Linkname: h.Linkname}}
		switch h.Typeflag {
		case tar.TypeDir, tar.TypeSymlink:
		case tar.TypeReg:
			f.stat.Size = h.Size
			if f.at, err = stream.Seek(0, io.SeekCurrent); err != nil { // a tar.Reader does not read ahead
				return nil, fmt.Errorf("read the build context: %w", err)
			}
		default:
			return nil, fmt.Errorf("read the build context: %q is neither a file, a folder nor a link", h.Name)
		}
		c.files[name] = f
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, there := c.files[dir]; there {
				break
			}
			c.files[dir] = contextFile{stat: &types.Stat{Path: dir, Mode: uint32(fs.ModeDir | 0o755), ModTime: contextTime()}}
		}
	}
	for name := range c.files {
		c.names = append(c.names, name)
	}
	slices.SortFunc(c.names, func(a, b string) int {
		return strings.Compare(strings.ReplaceAll(a, "/", "\x00"), strings.ReplaceAll(b, "/", "\x00"))
	})
	return c, nil
}

// Walk implements fsutil.FS.
func (c *contextFS) Walk(ctx context.Context, target string, fn fs.WalkDirFunc) error {
	target = strings.TrimPrefix(path.Join("/", target), "/")
	skip := ""
	for _, name := range c.names {
		if target != "" && !within(name, target) || skip != "" && within(name, skip) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		stat := c.files[name].stat
		err := fn(name, &fsutil.DirEntryInfo{Stat: stat.CloneVT()}, nil)
		switch {
		case errors.Is(err, fs.SkipAll):
			return nil
		case errors.Is(err, fs.SkipDir) && fs.FileMode(stat.Mode).IsDir():
			skip = name
		case errors.Is(err, fs.SkipDir):
			if skip = path.Dir(name); skip == "." {
				return nil
			}
		case err != nil:
			return err
		}
	}
	return nil
}

func within(name, dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }

// Open implements fsutil.FS.
func (c *contextFS) Open(name string) (io.ReadCloser, error) {
	f, ok := c.files[path.Clean(filepath.ToSlash(name))]
	if !ok || !fs.FileMode(f.stat.Mode).IsRegular() {
		return nil, &os.PathError{Op: "open", Path: name, Err: os.ErrNotExist}
	}
	return io.NopCloser(c.content(f)), nil
}

func (c *contextFS) content(f contextFile) *io.SectionReader {
	return io.NewSectionReader(c.from, f.at, f.stat.Size)
}

// maxText is the largest Dockerfile or .dockerignore, in bytes.
const maxText = 8 << 20

// text returns the content of a Dockerfile or a .dockerignore.
func (c *contextFS) text(name string) ([]byte, error) {
	f, ok := c.files[name]
	if !ok || !fs.FileMode(f.stat.Mode).IsRegular() {
		return nil, errors.New("the build context has no such file")
	}
	if f.stat.Size > maxText {
		return nil, fmt.Errorf("%s has %d bytes: want at most %d", name, f.stat.Size, maxText)
	}
	data, err := io.ReadAll(c.content(f))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return data, nil
}

// ignoring returns the context without the files that .dockerignore names, for an
// engine that does not apply the file itself.
func (c *contextFS) ignoring(dockerfile string) (fsutil.FS, error) {
	var all fsutil.FS = c
	if f, ok := c.files[".dockerignore"]; ok && fs.FileMode(f.stat.Mode).IsRegular() {
		text, err := c.text(".dockerignore")
		if err != nil {
			return nil, err
		}
		patterns, err := ignorefile.ReadAll(bytes.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("read .dockerignore: %w", err)
		}
		patterns = append(patterns, "!"+dockerfile) // the engine reads the Dockerfile from the context
		if all, err = fsutil.NewFilterFS(c, &fsutil.FilterOpt{ExcludePatterns: patterns}); err != nil {
			return nil, fmt.Errorf("read .dockerignore: %w", err)
		}
	}
	return all, nil
}
