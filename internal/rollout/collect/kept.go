package collect

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/spool"
	"github.com/turngate/turngate/sandboxes"
)

// Kept is an artifact for a separate verifier.
type Kept struct {
	source string // path in the form of the rule
	folder bool   // the file is a tar stream
	mode   fs.FileMode
	file   *spool.File
}

// Close removes the worker's copy of the artifact.
func (k Kept) Close() { k.file.Close() }

// Restore puts an artifact at the path that it was read from.
func (k Kept) Restore(ctx context.Context, sb sandboxes.Sandbox, owner string) error {
	content, err := k.file.Content()
	if err != nil {
		return err
	}
	at := place.Abs(sb, k.source)
	files := sb.Files()
	if at != "/" {
		if err := place.Clear(ctx, files, at); err != nil {
			return err
		}
	}
	if !k.folder {
		if err := files.Write(ctx, at, content, k.mode.Perm(), owner); err != nil {
			return fmt.Errorf("restore %s: %w", k.source, err)
		}
		return nil
	}
	if err := files.TarIn(ctx, at, content, owner); err != nil {
		return fmt.Errorf("restore %s: %w", k.source, err)
	}
	return nil
}
