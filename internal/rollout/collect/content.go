package collect

import (
	"context"
	"errors"
	"io/fs"

	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/sandboxes"
)

// content is a file or folder read from a sandbox. The caller closes its file.
type content struct {
	status  string // ok, empty or failed
	why     string
	missing bool
	folder  bool
	mode    fs.FileMode
	file    *spool.File // a tar for a folder; nil: not read
	leftOut []string    // patterns of files that had no room in it
}

func (f content) close() {
	if f.file != nil {
		f.file.Close()
	}
}

func (f content) name(dest string) string {
	if f.folder {
		return dest + ".tar"
	}
	return dest
}

func (f content) kind(guess string) string {
	switch {
	case f.folder:
		return "directory"
	case f.missing:
		return guess
	default:
		return "file"
	}
}

// read reads a file or a folder, with its symbolic links if links is true. It returns an
// error only if the sandbox is gone.
func read(ctx context.Context, rec *record.Record, files sandboxes.Files, at string, exclude []string, links bool) (content, error) {
	lost := func(err error) bool { return errors.Is(err, sandboxes.ErrLost) || ctx.Err() != nil }
	info, err := files.Stat(ctx, at)
	if err != nil {
		if lost(err) {
			return content{}, err
		}
		return content{status: "failed", why: err.Error(), missing: errors.Is(err, fs.ErrNotExist)}, nil
	}
	f := content{status: "ok", folder: info.Mode.IsDir(), mode: info.Mode, file: rec.Files.New()}
	if f.folder {
		if list, err := files.List(ctx, at); err == nil && len(list) == 0 {
			f.status = "empty"
		}
		f.leftOut, err = place.Pack(ctx, rec, files, at, f.file, exclude, links)
	} else {
		err = files.Read(ctx, at, f.file, record.MaxFile)
	}
	if err != nil {
		f.close()
		if lost(err) {
			return content{}, err
		}
		f.status, f.why, f.file = "failed", err.Error(), nil
	}
	return f, nil
}
