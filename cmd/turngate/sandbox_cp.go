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

	"github.com/turngate/turngate/internal/box"
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
				_, _, from := inSandbox(args[0])
				_, at, to := inSandbox(args[1])
				if from == to {
					wrong = append(wrong, errors.New("want one path of the form ID:PATH, and one of this host, such as ./name"))
				} else if to && !path.IsAbs(at) {
					wrong = append(wrong, fmt.Errorf("%q is not valid: want an absolute path after the ID", args[1]))
				}
			}
			return usageOf(wrong...)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			id, at, out := inSandbox(args[0])
			if !out {
				id, at, _ = inSandbox(args[1])
			}
			r, err := findSandbox(cmd, id)
			if err != nil {
				return err
			}
			b := r.Box(cmd.Context())
			if out {
				return f.out(cmd.Context(), b, at, args[1])
			}
			skipped, err := f.in(cmd.Context(), b, args[0], at)
			if skipped > 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "not copied: %s\n", plural(skipped, "link or special file"))
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&f.user, "user", "u", "", "owner of files that are copied in (default: the sandbox's user)")
	cmd.Flags().Int64Var(&f.maxMB, "max-mb", 4096, "most that is copied out")
	return cmd
}

// inSandbox splits an argument of the form ID:PATH.
func inSandbox(arg string) (id, at string, ok bool) {
	id, at, ok = strings.Cut(arg, ":")
	return id, at, ok && id != "" && at != "" && !strings.ContainsAny(id, "/.")
}

// out copies from the sandbox. Nothing in the stream is trusted: only files and folders
// below the target are written.
func (f *copyFlags) out(ctx context.Context, b *box.Caller, from, to string) error {
	info, err := b.Files().Stat(ctx, from)
	if err != nil {
		return err
	}
	if here, err := os.Stat(to); err == nil && here.IsDir() {
		to = filepath.Join(to, path.Base(path.Clean(from)))
	}
	dir, name := filepath.Dir(filepath.Clean(to)), filepath.Base(filepath.Clean(to))
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	below, only := name, ""
	if !info.Mode.IsDir() {
		below, only = "", name
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, w := io.Pipe()
	packed := make(chan error, 1)
	limit := f.maxMB << 20
	go func() {
		err := b.Files().TarOut(ctx, from, w, sandboxes.TarOptions{Limit: limit})
		w.CloseWithError(err)
		packed <- err
	}()
	err = unpackCopy(root, below, only, io.LimitReader(r, limit))
	cancel(err)
	_ = r.Close()
	if perr := <-packed; err == nil {
		err = perr
	}
	return err
}

// unpackCopy writes the entries of a tar below a folder of root. With only set, the tar has
// one file, which gets this name.
func unpackCopy(root *os.Root, below, only string, from io.Reader) error {
	if only == "" {
		if err := root.MkdirAll(below, 0o755); err != nil {
			return err
		}
	}
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
		at, mode := path.Join(below, name), fs.FileMode(h.Mode).Perm()
		switch h.Typeflag {
		case tar.TypeDir:
			if only == "" {
				err = root.MkdirAll(at, mode|0o700)
			}
		case tar.TypeReg:
			err = writeCopy(root, at, mode, r)
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

// in copies into the sandbox. It returns the number of files that are neither regular
// files nor folders, which it leaves out.
func (f *copyFlags) in(ctx context.Context, b *box.Caller, from, to string) (skipped int, err error) {
	info, err := os.Stat(from)
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is neither a file nor a folder", from)
	}
	if err != nil {
		return 0, err
	}
	there, err := b.Files().Stat(ctx, to)
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
	err = b.Files().TarIn(ctx, dir, r, f.user)
	r.CloseWithError(err)
	<-done
	return skipped, err
}

func packCopy(out *tar.Writer, from string) (skipped int, err error) {
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
