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
	"strings"
)

// Package is one npm package at a pinned version. "{arch}" in either stands for
// npm's name of this machine's processor.
type Package struct {
	Name    string
	Version string
	Dir     string // below the agent's folder
	// Brotli is a program in it that is compressed (its name ends in .br) and is
	// unpacked beside. Empty: none.
	Brotli string
	// Before says that it needs other packages, which npm chooses among those of
	// before this date. Empty: it needs none.
	Before string
}

// Cache is the host's folder of installed agents. Sandboxes mount an agent's
// folder read-only.
type Cache struct{ Dir string }

// Path is where an agent of this version is installed.
func (c Cache) Path(s Spec) string { return filepath.Join(c.Dir, s.Name, s.Version) }

// Installed says whether the agent is there; one without packages always is.
func (c Cache) Installed(s Spec) bool {
	if len(s.Packages) == 0 {
		return true
	}
	_, err := os.Stat(c.Path(s))
	return err == nil
}

// ErrNotInstalled is returned for an agent that is not in the cache.
var ErrNotInstalled = errors.New("not installed on this host; run `turngate agent install`")

// Install fetches an agent's packages with npm, which checks their checksums,
// and unpacks them. No install script runs. An agent that is there already is
// left alone.
func (c Cache) Install(ctx context.Context, s Spec, progress io.Writer) error {
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

// npm runs it in a folder.
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

// fetchTree downloads a package and what it needs into dir/node_modules.
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

// unpack takes an npm archive apart, without its first folder. os.Root keeps
// every entry inside.
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

// Loader is the GNU C library's program loader on this machine's processor,
// which a sandbox must have for agents with Glibc.
func Loader() string {
	if runtime.GOARCH == "arm64" {
		return "/lib/ld-linux-aarch64.so.1"
	}
	return "/lib64/ld-linux-x86-64.so.2"
}
