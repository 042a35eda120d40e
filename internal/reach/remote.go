package reach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/box"
)

// Remote is a sandbox of another process.
type Remote struct {
	Sandbox
	dir string // of its host
}

// askTime bounds the time for an answer of a host.
const askTime = 5 * time.Second

// askAtOnce is the number of hosts that are asked side by side.
const askAtOnce = 32

// List returns the sandboxes of all hosts below root that answer, the oldest first.
func List(ctx context.Context, root string) ([]Remote, error) {
	dirs, err := hosts(root)
	if err != nil || len(dirs) == 0 {
		return nil, err
	}
	if err := checkRoot(root); err != nil {
		return nil, err
	}
	lists := make([][]Sandbox, len(dirs))
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for i, dir := range dirs {
		asking.Go(func() error {
			lists[i], _ = listOf(ctx, dir) // a host without an answer ends now, or was killed
			return nil
		})
	}
	_ = asking.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var all []Remote
	for i, list := range lists {
		for _, s := range list {
			all = append(all, Remote{s, dirs[i]})
		}
	}
	slices.SortFunc(all, func(a, b Remote) int { return order(a.Sandbox, b.Sandbox) })
	return all, nil
}

func listOf(ctx context.Context, dir string) ([]Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conn, a, err := ask(ctx, dir, request{Op: opList})
	if err != nil {
		return nil, err
	}
	conn.Close()
	return a.Sandboxes, nil
}

// Find returns the sandbox with an id, or with the only id that begins so.
func Find(ctx context.Context, root, id string) (*Remote, error) {
	all, err := List(ctx, root)
	if err != nil {
		return nil, err
	}
	fits := slices.DeleteFunc(all, func(r Remote) bool { return id == "" || !strings.HasPrefix(r.ID, id) })
	switch len(fits) {
	case 1:
		return &fits[0], nil
	case 0:
		return nil, fmt.Errorf("%q is no sandbox of this user on this host", id)
	default:
		return nil, fmt.Errorf("%q begins %d ids: want more of it", id, len(fits))
	}
}

// ask sends a request and reads its answer. An error of the answer is returned.
func ask(ctx context.Context, dir string, q request) (net.Conn, answer, error) {
	var a answer
	conn, err := atSocket(dir, func(path string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
	if err != nil {
		return nil, a, fmt.Errorf("reach the process of the sandbox: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	if err = writeLine(conn, q); err == nil {
		err = readLine(conn, &a)
	}
	switch {
	case !stop():
		err = context.Cause(ctx)
	case err != nil:
		err = fmt.Errorf("ask the process of the sandbox: %w", err)
	case a.Error != "":
		err = errors.New(a.Error)
	}
	if err != nil {
		conn.Close()
	}
	return conn, a, err
}

// Box returns the operations of the sandbox. Their streams are closed when the context
// ends.
func (r *Remote) Box(ctx context.Context) *box.Caller {
	return box.Over(func() (net.Conn, error) {
		conn, _, err := ask(ctx, r.dir, request{Op: opOpen, ID: r.ID})
		if err != nil {
			return nil, err
		}
		return &stream{conn, context.AfterFunc(ctx, func() { conn.Close() })}, nil
	}, r.Workdir)
}

// stream is closed when a context ends.
type stream struct {
	net.Conn
	forget func() bool // the context
}

func (s *stream) Close() error {
	s.forget()
	return s.Conn.Close()
}

// Remove ends the sandbox if it is kept. When it returns, the sandbox is gone.
func (r *Remote) Remove(ctx context.Context) error {
	conn, _, err := ask(ctx, r.dir, request{Op: opRemove, ID: r.ID})
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	_, _ = io.Copy(io.Discard, conn) // see Held.remove
	return context.Cause(ctx)
}
