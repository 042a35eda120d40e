package local

import (
	"context"
	"io"
)

// Line is the byte stream to the box of a sandbox that a worker on another host uses. Read and
// Write carry the bytes of a box.Client there.
type Line struct {
	io.Reader
	io.Writer
	Secret  []byte // the client proves it
	Workdir string // of the sandbox

	lost  func() error
	close func(context.Context) error
}

// Lost returns the reason for the end of the box: an error that wraps
// sandboxes.ErrLost.
func (l *Line) Lost() error { return l.lost() }

// Close kills every process and removes the sandbox.
func (l *Line) Close(ctx context.Context) error { return l.close(ctx) }
