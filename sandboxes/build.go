package sandboxes

import (
	"fmt"
	"io"
	"path"

	"github.com/turngate/turngate/schema"
)

// Build describes an image to build.
type Build struct {
	Tar        Content // the build context, a tar stream
	Dockerfile string  // path in the context; default Dockerfile
	Target     string  // stage; default the last
	Args       map[string]string
	// Trainer owns the caches of the build's RUN --mount=type=cache; empty: the
	// worker's operator.
	Trainer string
	Task    string // name of the task that owns the image, shown in lists of images
}

// Content is the content of a file or an archive. A backend reads it while it makes the sandbox
// or the image, from several places at once.
type Content interface {
	io.ReaderAt
	Size() int64
}

// Bundle is the part of a task's files that a build needs.
type Bundle interface {
	Has(name string) bool
	Tar(dir string) (*io.SectionReader, error)
}

// NewBuild reads the context and the settings of a build from a task's bundle.
// An error means that the task is wrong.
func NewBuild(files Bundle, b *schema.Build, task string) (*Build, error) {
	b = b.WithDefaults()
	if file := path.Join(b.Context, b.Dockerfile); !files.Has(file) {
		return nil, fmt.Errorf("sandbox.build: the task's bundle has no %s", file)
	}
	data, err := files.Tar(b.Context)
	if err != nil {
		return nil, fmt.Errorf("sandbox.build: %w", err)
	}
	return &Build{Tar: data, Dockerfile: b.Dockerfile, Target: b.Target, Args: b.Args, Task: task}, nil
}
