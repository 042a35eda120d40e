package place

import (
	"context"
	"io"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/sandboxes"
)

// touchedFiles are the files of a sandbox that an agent may have spoiled.
type touchedFiles struct {
	sandboxes.Files
	touched *atomic.Bool
}

// try runs an operation.
func (f touchedFiles) try(ctx context.Context, operation func() error) error {
	start := time.Now()
	err := operation()
	return ends.Spoils(ctx, f.touched, time.Since(start), err)
}

func (f touchedFiles) Read(ctx context.Context, path string, w io.Writer, limit int64) error {
	return f.try(ctx, func() error { return f.Files.Read(ctx, path, w, limit) })
}

func (f touchedFiles) Write(ctx context.Context, path string, r io.Reader, mode fs.FileMode, owner string) error {
	return f.try(ctx, func() error { return f.Files.Write(ctx, path, r, mode, owner) })
}

func (f touchedFiles) Stat(ctx context.Context, path string) (info sandboxes.FileInfo, err error) {
	err = f.try(ctx, func() (err error) { info, err = f.Files.Stat(ctx, path); return err })
	return info, err
}

func (f touchedFiles) List(ctx context.Context, dir string) (list []sandboxes.FileInfo, err error) {
	err = f.try(ctx, func() (err error) { list, err = f.Files.List(ctx, dir); return err })
	return list, err
}

func (f touchedFiles) Mkdir(ctx context.Context, dir string, mode fs.FileMode, owner string) error {
	return f.try(ctx, func() error { return f.Files.Mkdir(ctx, dir, mode, owner) })
}

func (f touchedFiles) Empty(ctx context.Context, dir string, mode fs.FileMode, owner string) error {
	return f.try(ctx, func() error { return f.Files.Empty(ctx, dir, mode, owner) })
}

func (f touchedFiles) Remove(ctx context.Context, path string) error {
	return f.try(ctx, func() error { return f.Files.Remove(ctx, path) })
}

func (f touchedFiles) TarIn(ctx context.Context, dir string, r io.Reader, owner string) error {
	return f.try(ctx, func() error { return f.Files.TarIn(ctx, dir, r, owner) })
}

func (f touchedFiles) TarOut(ctx context.Context, path string, w io.Writer, o sandboxes.TarOptions) error {
	return f.try(ctx, func() error { return f.Files.TarOut(ctx, path, w, o) })
}
