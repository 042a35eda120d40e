// Package bundles keeps the unpacked bundles of tasks on the disk of a worker. The
// rollouts that use one at the same time share it.
package bundles

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// atOnce is the number of bundles that are unpacked at once: each can take the memory
// of a zstd window.
const atOnce = 2

// Cache is a folder of unpacked bundles. Its methods are safe for concurrent use. An
// earlier process of the same worker may use the folder too: a file that another process
// removes is made again.
type Cache struct {
	dir       string
	limit     int64
	log       zerolog.Logger
	unpacking chan struct{} // of capacity atOnce

	mu      sync.Mutex
	entries map[key]*entry
	found   int64 // opens of a bundle that was there
	fetched int64 // opens of a bundle that was not
}

// Stats describes a cache and its use since New.
type Stats struct {
	Bytes          int64 // of the files
	Found, Fetched int64 // opens of a bundle that was there, and that was not
}

// Stats returns the size and the use of the cache.
func (c *Cache) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stats{Found: c.found, Fetched: c.fetched}
	for _, e := range c.entries {
		s.Bytes += e.size
	}
	return s
}

// count counts an open that found the bundle or not.
func (c *Cache) count(found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found {
		c.found++
	} else {
		c.fetched++
	}
}

// key names a bundle. A trainer that knows only the sha256 of another's bundle must not
// get its files, so each trainer has entries of its own.
type key struct{ trainer, sha string }

// entry is a bundle that is in the folder or that a rollout opens.
type entry struct {
	opening chan struct{} // of capacity 1: full while a rollout opens the entry

	// Guarded by the cache's mutex.
	users int // rollouts that open or use it
	size  int64
	used  time.Time

	// Guarded by opening, and by the mutex if there is no user.
	digest  string        // sha256 of the file; empty: there is no file
	checked fs.FileInfo   // of the file when its content had the digest; nil: not checked
	open    *tasks.Bundle // nil if there is no user
}

// New opens the folder of a cache, which may have the bundles of earlier processes. If
// the files have more than limit bytes together, those are removed that no rollout uses,
// the longest unused first.
func New(dir string, limit int64, log zerolog.Logger) (*Cache, error) {
	c := &Cache{dir: dir, limit: limit, log: log, unpacking: make(chan struct{}, atOnce), entries: map[key]*entry{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the cache of bundles: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open the cache of bundles: %w", err)
	}
	for _, f := range files {
		info, err := f.Info()
		if errors.Is(err, fs.ErrNotExist) { // another process of the worker removed it
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open the cache of bundles: %w", err)
		}
		k, digest, ok := parse(f.Name())
		if ok && c.entries[k] == nil {
			c.entries[k] = &entry{opening: make(chan struct{}, 1), digest: digest, size: info.Size(), used: info.ModTime()}
		} else if ok || strings.HasPrefix(f.Name(), partPrefix) { // unpacked by another version, or not to the end
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("open the cache of bundles: %w", err)
			}
		}
	}
	c.trim(c.limit)
	return c, nil
}

// Open opens a trainer's bundle. If the folder does not have it, fetch writes the packed
// bundle. It returns the errors of fetch and of the disk, or a *tasks.BundleError.
// The caller closes the bundle.
func (c *Cache) Open(ctx context.Context, trainer, sha string, fetch func(ctx context.Context, to io.Writer) error) (*tasks.Bundle, error) {
	if err := errors.Join(schema.CheckToken("trainer", trainer), schema.CheckSHA256("bundle", sha)); err != nil { // they become the name of a file
		return nil, err
	}
	k := key{trainer, sha}
	e := c.join(k)
	select {
	case e.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), c.leave(k, e))
	}
	defer func() { <-e.opening }()
	found := true
	if e.open == nil {
		var err error
		if e.open, found, err = c.load(ctx, k, e, fetch); err != nil {
			return nil, errors.Join(err, c.leave(k, e))
		}
	}
	c.count(found)
	return e.open.Shared(func() error { return c.leave(k, e) }), nil
}

func (c *Cache) join(k key) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e == nil {
		e = &entry{opening: make(chan struct{}, 1)}
		c.entries[k] = e
	}
	e.users++
	e.used = time.Now()
	return e
}

// leave ends the use of an entry. The last user closes it.
func (c *Cache) leave(k key, e *entry) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	e.used = time.Now()
	if e.users > 0 {
		return nil
	}
	if e.open != nil {
		err = e.open.Close()
		e.open = nil
	}
	if e.digest == "" {
		delete(c.entries, k)
	}
	c.trim(c.limit)
	return err
}

// trim removes unused files until the cache has at most limit bytes. The caller holds
// the mutex.
func (c *Cache) trim(limit int64) {
	var total int64
	var idle []key
	for k, e := range c.entries {
		total += e.size
		if e.users == 0 {
			idle = append(idle, k)
		}
	}
	slices.SortFunc(idle, func(a, b key) int { return c.entries[a].used.Compare(c.entries[b].used) })
	for _, k := range idle {
		if total <= limit {
			return
		}
		e := c.entries[k]
		if err := os.Remove(c.path(k, e.digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.log.Warn().Err(err).Msg("an unused bundle was not removed")
			continue
		}
		total -= e.size
		delete(c.entries, k)
	}
}

// load opens the file of an entry, and makes it if it is missing or damaged. found is
// true if it was there.
func (c *Cache) load(ctx context.Context, k key, e *entry, fetch func(context.Context, io.Writer) error) (_ *tasks.Bundle, found bool, err error) {
	if e.digest != "" {
		b, err := c.read(ctx, k, e)
		if err == nil || ctx.Err() != nil {
			return b, true, err
		}
		c.log.Warn().Err(err).Str("bundle", k.sha).Msg("a bundle on disk is missing or damaged and is fetched again")
		_ = os.Remove(c.path(k, e.digest))
		e.digest, e.checked = "", nil
		c.setSize(e, 0)
	}
	err = c.store(ctx, k, e, fetch)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) { // the disk may be smaller than the limit
		c.log.Warn().Err(err).Str("bundle", k.sha).Msg("the disk is full: all unused bundles are removed, and the bundle is fetched again")
		c.RemoveUnused()
		err = c.store(ctx, k, e, fetch)
	}
	if errors.Is(err, fs.ErrNotExist) { // a process that starts removes files that are not complete
		err = c.store(ctx, k, e, fetch)
	}
	if err != nil {
		return nil, false, err
	}
	b, err := c.read(ctx, k, e)
	return b, false, err
}

// RemoveUnused removes the files of all bundles that no rollout uses.
func (c *Cache) RemoveUnused() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trim(0)
}

// setSize notes the size of an entry's file and removes others that have no room beside it.
func (c *Cache) setSize(e *entry, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.size = n
	c.trim(c.limit)
}

// read opens the file of an entry. It checks the digest of a file that another process
// has written, or that has changed.
func (c *Cache) read(ctx context.Context, k key, e *entry) (_ *tasks.Bundle, err error) {
	path := c.path(k, e.digest)
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			file.Close()
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if e.checked == nil || !os.SameFile(info, e.checked) || info.Size() != e.checked.Size() || !info.ModTime().Equal(e.checked.ModTime()) {
		sum := sha256.New()
		if _, err := io.Copy(sum, &reader{ctx, file}); err != nil {
			return nil, fmt.Errorf("check a cached bundle: %w", err)
		}
		if got := hex.EncodeToString(sum.Sum(nil)); got != e.digest {
			return nil, fmt.Errorf("the file %s has sha256 %s", path, got)
		}
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil { // New sorts by it
		return nil, err
	}
	if e.checked, err = file.Stat(); err != nil {
		return nil, err
	}
	return tasks.OpenUnpacked(file)
}

// partPrefix begins the names of files that are not complete.
const partPrefix = "part-"

// store fetches a bundle and unpacks it into the folder.
func (c *Cache) store(ctx context.Context, k key, e *entry, fetch func(context.Context, io.Writer) error) error {
	packed, err := c.temporary()
	if err != nil {
		return err
	}
	defer packed.Close()
	if err := os.Remove(packed.Name()); err != nil { // no other process opens it
		return fmt.Errorf("fetch a bundle: %w", err)
	}
	if err := fetch(ctx, packed); err != nil {
		return err
	}
	if _, err := packed.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("unpack a bundle: %w", err)
	}
	select {
	case c.unpacking <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.unpacking }()
	out, err := c.temporary()
	if err != nil {
		return err
	}
	defer out.Close()
	digest, err := unpack(&reader{ctx, packed}, out)
	if err == nil {
		err = os.Rename(out.Name(), c.path(k, digest))
	}
	if err != nil {
		_ = os.Remove(out.Name())
		return err
	}
	info, err := out.Stat()
	if err != nil {
		return fmt.Errorf("unpack a bundle: %w", err)
	}
	e.digest, e.checked = digest, info
	c.setSize(e, info.Size())
	return nil
}

func (c *Cache) temporary() (*os.File, error) {
	f, err := os.CreateTemp(c.dir, partPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a file in the cache of bundles: %w", err)
	}
	return f, nil
}

// unpack unpacks a bundle and returns the sha256 of the output.
func unpack(packed io.Reader, to io.Writer) (digest string, err error) {
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(to, sum), 64<<10)
	if err := tasks.Unpack(packed, out); err != nil {
		return "", err
	}
	if err := out.Flush(); err != nil {
		return "", fmt.Errorf("unpack a bundle: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// reader reads until its context ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// The name of a file has the trainer, the sha256 of the packed bundle and that of the
// file.
const fileEnd = ".tar"

func (c *Cache) path(k key, digest string) string {
	return filepath.Join(c.dir, k.trainer+"."+k.sha+"."+digest+fileEnd)
}

func parse(name string) (k key, digest string, ok bool) {
	text, ok := strings.CutSuffix(name, fileEnd)
	parts := strings.Split(text, ".")
	if !ok || len(parts) != 3 || errors.Join(schema.CheckToken("trainer", parts[0]), schema.CheckSHA256("bundle", parts[1]), schema.CheckSHA256("file", parts[2])) != nil {
		return key{}, "", false
	}
	return key{parts[0], parts[1]}, parts[2], true
}
