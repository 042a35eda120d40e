package local

import (
	"bufio"
	"context"
	"io"
	"time"

	"github.com/turngate/turngate/sandboxes"
)

// Line is the byte stream to the box of a sandbox whose worker is on another host.
// Read and Write carry the bytes of a box.Client there.
type Line struct {
	io.Reader
	io.Writer
	Secret  []byte // the client proves it
	Workdir string // of the sandbox
	sb      *sandbox
}

// Open makes a sandbox as Create does. It returns when the box waits for its
// worker.
func (b *Backend) Open(ctx context.Context, s sandboxes.Spec) (*Line, error) {
	l := &Line{}
	_, err := b.make(ctx, s, func(sb *sandbox, ctx context.Context, cfg *boxConfig) error {
		in := bufio.NewReader(sb.conn)
		l.Reader, l.Writer, l.Secret, l.Workdir, l.sb = in, sb.conn, cfg.Secret, cfg.Workdir, sb
		defer context.AfterFunc(ctx, func() { _ = sb.conn.SetReadDeadline(time.Now()) })()
		_, err := in.Peek(1) // the box speaks first, once its root is made
		return err
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Lost returns the reason for the end of the box: an error that wraps
// sandboxes.ErrLost.
func (l *Line) Lost() error { return l.sb.whyLost() }

// Close kills every process and removes the sandbox.
func (l *Line) Close(ctx context.Context) error { return l.sb.Close(ctx) }
