package record

import (
	"bytes"
	"io"
	"sync"

	"github.com/turngate/turngate/internal/spool"
)

// Files are the files of a rollout that are not stored yet.
type Files struct {
	folder *spool.Folder

	mu  sync.Mutex
	all []*spool.File
}

// New returns an empty file. Close closes it, if it is still open.
func (f *Files) New() *spool.File {
	file := f.folder.New()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, file)
	return file
}

// Close closes all files.
func (f *Files) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range f.all {
		file.Close()
	}
	f.all = nil
}

// Text returns a short text as the content of a file.
func Text(text []byte) *io.SectionReader {
	return io.NewSectionReader(bytes.NewReader(text), 0, int64(len(text)))
}
