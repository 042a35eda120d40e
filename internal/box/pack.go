package box

import (
	"io"
	"io/fs"
)

const (
	// maxWalk is the most files that tarOut looks at, packed or not. Their names are
	// in the memory of the sandbox.
	maxWalk = 500_000
	// maxDepth is the deepest nesting of folders that the box looks into. Each level
	// keeps a descriptor open.
	maxDepth = 400
)

// nameless keeps package tar from a search for the names of owners in /etc/passwd,
// which may be a pipe by now.
type nameless struct{ fs.FileInfo }

func (nameless) Uname() (string, error) { return "", nil }
func (nameless) Gname() (string, error) { return "", nil }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

type limitedWriter struct {
	w    io.Writer
	left int64
	err  error
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		return 0, l.err
	}
	l.left -= int64(len(p))
	return l.w.Write(p)
}
