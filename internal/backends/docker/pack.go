package docker

import (
	"archive/tar"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/turngate/turngate/sandboxes"
)

// packFiles writes files as a tar stream.
func packFiles(to io.Writer, files []sandboxes.File) error {
	w := tar.NewWriter(to)
	for _, f := range files {
		name := strings.TrimPrefix(path.Clean(f.Path), "/")
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: int64(f.Mode.Perm()), Size: f.Data.Size()}); err != nil {
			return fmt.Errorf("pack %s: %w", f.Path, err)
		}
		if _, err := io.Copy(w, io.NewSectionReader(f.Data, 0, f.Data.Size())); err != nil {
			return fmt.Errorf("pack %s: %w", f.Path, err)
		}
	}
	return w.Close()
}

// piped returns what write writes, as a reader. stop ends write and waits for it.
func piped(write func(io.Writer) error) (r io.Reader, stop func()) {
	from, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		to.CloseWithError(write(to)) // a nil error ends the stream
	}()
	return from, func() {
		_ = from.Close() // never fails
		<-done
	}
}
