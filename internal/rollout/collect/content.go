package collect

import (
	"context"
	"errors"
	"io/fs"

	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/sandboxes"
)

// content is a file or folder read from a sandbox.
type content struct {
	status  string // ok, empty or failed
	why     string
	missing bool
	folder  bool
	mode    fs.FileMode
	data    []byte   // a tar for a folder; nil: not read
	leftOut []string // patterns of files that had no room in data
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
	f := content{status: "ok", folder: info.Mode.IsDir(), mode: info.Mode}
	if f.folder {
		if list, err := files.List(ctx, at); err == nil && len(list) == 0 {
			f.status = "empty"
		}
		f.data, f.leftOut, err = place.Pack(ctx, rec, files, at, exclude, links)
	} else {
		f.data, err = files.Read(ctx, at, record.MaxFile)
	}
	switch {
	case err == nil && f.data == nil:
		f.data = []byte{} // the file exists
	case err != nil && lost(err):
		return content{}, err
	case err != nil:
		f.status, f.why, f.data = "failed", err.Error(), nil
	}
	return f, nil
}
