package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/sandboxes"
)

type copyFlags struct {
	user  string
	maxMB int64
}

func sandboxCopyCommand() *cobra.Command {
	var f copyFlags
	cmd := &cobra.Command{
		Use:   "cp ID:PATH LOCAL | cp LOCAL ID:PATH",
		Short: "Copy a file or a folder out of a sandbox, or into it",
		Long:  "Copy a file or a folder out of a sandbox, or into it. A target that is a folder gets the copy below it. Only files and folders are copied: no links, and no owners.",
		Args:  cobra.ExactArgs(2),
		PreRunE: func(_ *cobra.Command, args []string) error {
			wrong := []error{atLeast("max-mb", f.maxMB, 1)}
			if len(args) == 2 {
				id, at, _, err := copySides(args[0], args[1], "ID:PATH")
				if err == nil && !path.IsAbs(at) {
					err = fmt.Errorf("%q is not valid: want an absolute path after the ID", id+":"+at)
				}
				wrong = append(wrong, err)
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, at, out, err := copySides(args[0], args[1], "ID:PATH")
			if err != nil {
				return err
			}
			r, err := findSandbox(cmd, id)
			if err != nil {
				return err
			}
			b := r.Box(cmd.Context())
			if out {
				return f.out(cmd.Context(), b.Files(), at, args[1])
			}
			return f.in(cmd, b.Files(), args[0], at)
		},
	}
	cmd.Flags().StringVarP(&f.user, "user", "u", "", "owner of files that are copied in (default: the sandbox's user)")
	f.addMost(cmd.Flags())
	return cmd
}

func (f *copyFlags) addMost(fl *pflag.FlagSet) {
	fl.Int64Var(&f.maxMB, "max-mb", 4096, "most that is copied out")
}

// inSandbox splits an argument of the form ID:PATH.
func inSandbox(arg string) (id, at string, ok bool) {
	id, at, ok = strings.Cut(arg, ":")
	return id, at, ok && id != "" && at != "" && !strings.ContainsAny(id, "/.")
}

// copySides returns the sandbox of a copy and the path there, from arguments of which one has
// the form; out: this one is the source.
func copySides(from, to, form string) (id, at string, out bool, err error) {
	id, at, out = inSandbox(from)
	other, there, in := inSandbox(to)
	if in {
		id, at = other, there
	}
	if in == out {
		err = fmt.Errorf("want one path of the form %s, and one of this host, such as ./name", form)
	}
	return id, at, out, err
}

// out copies from the sandbox. Nothing in the stream is trusted: only files and folders
// below the target are written.
func (f *copyFlags) out(ctx context.Context, b sandboxes.Files, from, to string) error {
	info, err := b.Stat(ctx, from)
	if err == nil && !info.Mode.IsDir() && !info.Mode.IsRegular() {
		err = fmt.Errorf("%s is neither a file nor a folder", from)
	}
	if err != nil {
		return err
	}
	if here, err := os.Stat(to); err == nil && here.IsDir() {
		to = filepath.Join(to, path.Base(path.Clean(from)))
	}
	dir, name := filepath.Dir(filepath.Clean(to)), filepath.Base(filepath.Clean(to))
	only := name
	if info.Mode.IsDir() {
		dir, only = filepath.Join(dir, name), ""
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, w := io.Pipe()
	packed := make(chan error, 1)
	limit := f.maxMB << 20
	go func() {
		err := b.TarOut(ctx, from, w, sandboxes.TarOptions{Limit: limit})
		w.CloseWithError(err)
		packed <- err
	}()
	err = unpackCopy(root, only, io.LimitReader(r, limit), limit)
	cancel(err)
	_ = r.Close()
	if perr := <-packed; err == nil {
		err = perr
	}
	return err
}

// unpackCopy writes the entries of a tar into root, and at most limit bytes: a sparse file
// is larger than its part of the tar. With only set, the tar has one file, which gets this
// name.
func unpackCopy(root *os.Root, only string, from io.Reader, limit int64) error {
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, from) // padding
			return err
		}
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "./"))
		if only != "" {
			name = only
		}
		if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
			return fmt.Errorf("copy: the sandbox sent the name %q", h.Name)
		}
		if limit -= h.Size; limit < 0 {
			return fmt.Errorf("copy: %q and the files before it are larger than the limit", h.Name)
		}
		mode := fs.FileMode(h.Mode).Perm()
		switch h.Typeflag {
		case tar.TypeDir:
			if only == "" {
				err = root.MkdirAll(name, mode|0o700)
			}
		case tar.TypeReg:
			err = writeCopy(root, name, mode, r)
		}
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
}

func writeCopy(root *os.Root, at string, mode fs.FileMode, from io.Reader) error {
	if err := root.MkdirAll(path.Dir(at), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(at, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// in copies into the sandbox. It leaves files out that are neither regular files nor
// folders, and prints their number.
func (f *copyFlags) in(cmd *cobra.Command, b sandboxes.Files, from, to string) error {
	skipped, err := f.pack(cmd.Context(), b, from, to)
	if skipped > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "not copied: %s\n", plural(skipped, "link or special file"))
	}
	return err
}

func (f *copyFlags) pack(ctx context.Context, b sandboxes.Files, from, to string) (skipped int, err error) {
	info, err := os.Stat(from)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is neither a file nor a folder", from)
	}
	if err != nil {
		return 0, err
	}
	to = path.Clean(to)
	there, err := b.Stat(ctx, to)
	switch {
	case err == nil && there.Mode.IsDir():
		abs, err := filepath.Abs(from)
		if err != nil {
			return 0, err
		}
		to = path.Join(to, filepath.Base(abs))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return 0, err
	}
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		out := tar.NewWriter(w)
		var err error
		if info.IsDir() {
			skipped, err = packCopy(out, from)
		} else {
			err = packFile(out, from, path.Base(to))
		}
		if err == nil {
			err = out.Close()
		}
		w.CloseWithError(err)
	}()
	dir := to
	if !info.IsDir() {
		dir = path.Dir(to)
	}
	err = b.TarIn(ctx, dir, r, f.user)
	r.CloseWithError(err)
	<-done
	return skipped, err
}

func packCopy(out *tar.Writer, from string) (skipped int, err error) {
	if from, err = filepath.EvalSymlinks(from); err != nil { // WalkDir does not follow a link
		return 0, err
	}
	err = filepath.WalkDir(from, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, at)
		switch {
		case err != nil || name == ".":
			return err
		case e.IsDir():
			return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: filepath.ToSlash(name) + "/", Mode: 0o755})
		case e.Type().IsRegular():
			return packFile(out, at, filepath.ToSlash(name))
		default:
			skipped++
			return nil
		}
	})
	return skipped, err
}

func packFile(out *tar.Writer, at, name string) error {
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", at)
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm())}); err != nil {
		return err
	}
	_, err = io.CopyN(out, f, info.Size())
	return err
}
