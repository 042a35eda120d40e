package tasks

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/turngate/turngate/schema"
)

// template is the small task that Init copies.
//
//go:embed template
var template embed.FS

// Init makes a small complete task in a new folder, with an image based on the
// given one, a verifier and a solution. It refuses a path that exists. The error
// is a *schema.InvalidError, or comes from writing the files.
func Init(dir, image string) error {
	if base := filepath.Base(filepath.Clean(dir)); dir == "" || base == "." || base == ".." || base == "/" || strings.HasPrefix(base, "-") || strings.ContainsAny(base, "\n\r\x00") {
		return &schema.InvalidError{Field: "name", Value: dir, Want: "want the name of a new folder"}
	}
	if image == "" || strings.HasPrefix(image, "-") || strings.ContainsAny(image, " \t\n\r\x00\\") {
		return &schema.InvalidError{Field: "image", Value: image, Want: "want an image reference, such as debian:bookworm-slim"}
	}
	if _, err := os.Lstat(dir); err == nil {
		return &schema.InvalidError{Field: "name", Value: dir, Want: "want a new folder; this one exists already"}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make the task: %w", err)
	}
	files, err := fs.Sub(template, "template")
	if err != nil {
		return fmt.Errorf("make the task: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(dir)), 0o755); err != nil {
		return fmt.Errorf("make the task: %w", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil { // fails if another process made it meanwhile
		return fmt.Errorf("make the task: %w", err)
	}
	return fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		at := filepath.Join(dir, filepath.FromSlash(name))
		if d.IsDir() {
			return os.Mkdir(at, 0o755)
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, ".sh") {
			mode = 0o755
		}
		return os.WriteFile(at, bytes.ReplaceAll(data, []byte("FROM IMAGE"), []byte("FROM "+image)), mode)
	})
}
