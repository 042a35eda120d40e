package docker

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// attachment is a meeting over the standard input and output of the container, which
// travel in the engine's API.
type attachment struct {
	conn net.Conn // nil before listen
	from *bufio.Reader
}

func (*attachment) join(c *container.Config, _ *container.HostConfig) {
	c.Entrypoint = []string{sandboxes.HelperPath, "box"}
	c.OpenStdin, c.StdinOnce = true, true // the input ends with the connection, and the box with its input
}

func (a *attachment) listen(ctx context.Context, in *instance) error {
	type answer struct {
		to  types.HijackedResponse
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		to, err := in.engine.api.ContainerAttach(ctx, in.id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true})
		answered <- answer{to, err}
	}()
	select {
	case r := <-answered:
		if r.err != nil {
			return fmt.Errorf("attach to container %s: %w", in.name, r.err)
		}
		a.conn, a.from = r.to.Conn, r.to.Reader
		return nil
	case <-ctx.Done(): // the Docker client waits on for an engine that hangs
		go func() {
			if r := <-answered; r.err == nil {
				r.to.Close()
			}
		}()
		return context.Cause(ctx)
	}
}

// accept gives the box its configuration. No file has the secret in it.
func (a *attachment) accept(ctx context.Context, cfg *box.Config) (*box.Client, error) {
	data, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("configure the box: %w", err)
	}
	defer context.AfterFunc(ctx, a.close)()
	if _, err := a.conn.Write(data); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("configure the box: %w", err)
	}
	return box.NewClient(ctx, &attached{Conn: a.conn, from: a.from}, cfg.Secret, cfg.Workdir)
}

func (a *attachment) close() {
	if a.conn != nil {
		a.conn.Close()
	}
}

// attached is a connection that reads the output of a container from the engine's frames.
type attached struct {
	net.Conn
	from io.Reader
	left uint32 // bytes of the frame
}

// A frame has a header of 8 bytes, with the number of the stream in the first and the
// size in the last four.
const (
	frameHead   = 8
	frameStdout = 1
)

// Read returns output of the container.
func (c *attached) Read(p []byte) (int, error) {
	for c.left == 0 {
		var head [frameHead]byte
		if _, err := io.ReadFull(c.from, head[:]); err != nil {
			return 0, err
		}
		if head[0] != frameStdout {
			return 0, errors.New("the Docker engine sends something else than the container's output")
		}
		c.left = binary.BigEndian.Uint32(head[frameHead/2:])
	}
	n, err := c.from.Read(p[:min(len(p), int(c.left))])
	c.left -= uint32(n)
	return n, err
}
