package place

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/rollout/record"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/sandboxes"
)

const (
	// maxLooks bounds the folders that are listed to find the files without room.
	maxLooks = 1000
	// maxLeftOut is the most files that are left out of a folder.
	maxLeftOut = 100
	// perFile is the room in an archive that a file needs besides its content.
	perFile = 2 << 10
)

// sized is a file below a folder.
type sized struct {
	path string // relative
	size int64
}

// Pack packs a folder into an empty file, without the paths that exclude matches, and with
// symbolic links if links is true. If the folder is larger than record.MaxFile, its largest
// files are left out, such as a sparse file of many gigabytes. A note names them; it returns
// their patterns.
func Pack(ctx context.Context, rec *record.Record, files sandboxes.Files, at string, to *spool.File, exclude []string, links bool) (leftOut []string, err error) {
	o := sandboxes.TarOptions{Limit: record.MaxFile, Exclude: exclude, Links: links}
	err = files.TarOut(ctx, at, to, o)
	var large *sandboxes.TooLargeError
	if err == nil || !errors.As(err, &large) {
		return nil, err
	}
	without, ferr := tooMuch(ctx, files, at, exclude)
	if ferr != nil || len(without) == 0 {
		return nil, errors.Join(err, ferr)
	}
	names := make([]string, len(without))
	for i, f := range without {
		leftOut = append(leftOut, "./"+strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, `\`, `\\`).Replace(f.path))
		names[i] = fmt.Sprintf("%s (%d bytes)", f.path, f.size)
	}
	to.Reset()
	o.Exclude = slices.Concat(exclude, leftOut)
	if err := files.TarOut(ctx, at, to, o); err != nil {
		return nil, err
	}
	rec.Note("%s was kept without its largest files, since it may have %d bytes: %s", at, int64(record.MaxFile), strings.Join(names, ", "))
	return leftOut, nil
}

// tooMuch returns the fewest files without which a folder is small enough. It returns
// none if these are more than maxLeftOut, or the folder has too many folders.
func tooMuch(ctx context.Context, files sandboxes.Files, at string, exclude []string) ([]sized, error) {
	excluded, err := sandboxes.NewExcluder(exclude)
	if err != nil {
		return nil, err
	}
	var all []sized
	var total int64
	folders := []string{"."}
	for looks := 0; len(folders) > 0; looks++ {
		if looks == maxLooks {
			return nil, nil
		}
		dir := folders[0]
		folders = folders[1:]
		list, err := files.List(ctx, path.Join(at, dir))
		if err != nil {
			return nil, err
		}
		for _, f := range list {
			rel := path.Join(dir, f.Name)
			switch {
			case excluded.Excludes(rel):
			case f.Mode.IsDir():
				total += perFile
				folders = append(folders, rel)
			case f.Mode.IsRegular():
				size := min(f.Size, 1<<50) // the sum stays below 1<<63
				total += size + perFile
				all = append(all, sized{rel, size})
			}
		}
	}
	slices.SortFunc(all, func(a, b sized) int { return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.path, b.path)) })
	for i, f := range all {
		if total <= record.MaxFile || i == maxLeftOut {
			all = all[:i]
			break
		}
		total -= f.size + perFile
	}
	if total > record.MaxFile {
		return nil, nil
	}
	return all, nil
}
