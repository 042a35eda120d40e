package far

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"time"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// Unconfined is the argument of Serve for commands without a sandbox.
const Unconfined = "unconfined"

// bare is the line to a box without a sandbox, which is in this process.
type bare struct {
	net.Conn
	secret []byte
	over   chan struct{}
	err    error // valid after over
}

// openBare starts a box. Its commands run in the folder as the user of this process.
func openBare(folder string, s sandboxes.Spec) (*bare, error) {
	if s.User != "" || s.Workdir != "" || len(s.Mounts) > 0 || s.CPUs > 0 || s.MemoryBytes > 0 || s.DiskBytes > 0 || s.Pids > 0 || s.GPUs > 0 {
		return nil, &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: Unconfined, Reason: "without a sandbox there are no other users and folders, and no limits"}
	}
	ours, theirs, err := Conns()
	if err != nil {
		return nil, err
	}
	b := &bare{Conn: ours, secret: make([]byte, 32), over: make(chan struct{})}
	_, _ = rand.Read(b.secret) // never fails
	c := &box.Config{Secret: bytes.Clone(b.secret), LifeMS: cmp.Or(s.Life, 24*time.Hour).Milliseconds(), LostMS: cmp.Or(s.Lost, 5*time.Minute).Milliseconds(), Workdir: sandboxes.DefaultWorkdir}
	for k, v := range s.Env {
		c.Env = append(c.Env, k+"="+v)
	}
	go func() {
		defer close(b.over)
		b.err = box.ServeUnconfined(theirs, c, folder)
	}()
	return b, nil
}

// Lost returns the reason for the end of the box: an error that wraps sandboxes.ErrLost.
func (b *bare) Lost() error {
	<-b.over
	if b.err != nil {
		return fmt.Errorf("%w: %w", sandboxes.ErrLost, b.err)
	}
	return sandboxes.ErrLost
}

// Close ends the box and its commands.
func (b *bare) Close(context.Context) error {
	_ = b.Conn.Close() // the box closes the other end
	<-b.over
	return nil
}
