package box

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Caller runs operations of a box, each on a stream of its own.
type Caller struct {
	stream  func() (net.Conn, error)
	workdir string
	lost    func() error // the error of an operation after its stream broke
}

// Over returns a caller for a box with a Client in another process. Each call of open returns a
// connection that carries the bytes of one Client.Stream.
func Over(open func() (net.Conn, error), workdir string) *Caller {
	return &Caller{stream: open, workdir: workdir, lost: func() error { return sandboxes.ErrLost }}
}

// Stream opens a stream for one operation, for Over in another process. The box ends the
// operation if the stream is closed early.
func (c *Caller) Stream() (net.Conn, error) { return c.stream() }

// Workdir implements sandboxes.Sandbox.
func (c *Caller) Workdir() string { return c.workdir }

func (c *Caller) open(h *header) (net.Conn, *frameReader, *frameWriter, error) {
	data, err := json.Marshal(h)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%s: encode its header: %w", h.Op, err)
	}
	if len(data) > maxHeader {
		return nil, nil, nil, &sandboxes.NoCommandError{Arg: first(h.Args), Reason: fmt.Sprintf("its arguments and environment have %d bytes as JSON, more than %d", len(data), maxHeader)}
	}
	stream, err := c.stream()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", h.Op, c.lost())
	}
	out := &frameWriter{w: stream}
	if err := out.write(frameHeader, data); err != nil {
		stream.Close()
		return nil, nil, nil, fmt.Errorf("%s: %w", h.Op, c.lost())
	}
	return stream, newFrameReader(stream), out, nil
}

// call runs one operation: it sends content, writes received data to data and
// decodes the answer into result.
func (c *Caller) call(ctx context.Context, h *header, content io.Reader, data io.Writer, result any) error {
	stream, in, out, err := c.open(h)
	if err != nil {
		return err
	}
	defer stream.Close()
	defer context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Now()) })()
	sent := make(chan error, 1)
	go func() {
		if content == nil {
			sent <- nil
			return
		}
		_, err := io.Copy(out.stream(frameData), sandboxes.Source(content))
		var unread *sandboxes.SourceError
		switch {
		case err == nil:
			err = out.write(frameEOF, nil)
		case errors.As(err, &unread):
			_ = stream.SetDeadline(time.Now()) // the box would wait for the rest
		}
		sent <- err
	}()
	err = c.finish(ctx, h, in, data, result)
	_ = stream.SetDeadline(time.Now()) // unblocks a sender that is still writing
	var unread *sandboxes.SourceError
	if serr := <-sent; serr != nil && (err == nil || errors.As(serr, &unread)) {
		err = fmt.Errorf("%s %s: %w", h.Op, h.Path, serr)
	}
	return err
}

func (c *Caller) finish(ctx context.Context, h *header, in *frameReader, data io.Writer, result any) error {
	for {
		kind, payload, err := in.next()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%s %s: %w", h.Op, h.Path, c.lost())
		}
		switch kind {
		case frameData:
			if data == nil {
				continue
			}
			if _, err := data.Write(payload); err != nil {
				return fmt.Errorf("%s %s: %w", h.Op, h.Path, err)
			}
		case frameOK:
			if result == nil {
				return nil
			}
			if err := json.Unmarshal(payload, result); err != nil {
				return fmt.Errorf("%s %s: read the box's answer: %w", h.Op, h.Path, rawjson.Plain(err))
			}
			return nil
		case frameFail:
			return failed(h, payload)
		}
	}
}

// failed converts a failure of the box into an error of package sandboxes.
func failed(h *header, payload []byte) error {
	var f failure
	if err := json.Unmarshal(payload, &f); err != nil {
		return fmt.Errorf("%s %s: read the box's answer: %w", h.Op, h.Path, rawjson.Plain(err))
	}
	switch f.Code {
	case failNoCommand:
		return &sandboxes.NoCommandError{Arg: f.Arg, Reason: f.Message}
	case failNoUser:
		return &sandboxes.NoUserError{User: f.Arg, Reason: f.Message}
	case failTooLarge:
		return &sandboxes.TooLargeError{Path: f.Arg, Limit: f.Limit}
	case failNotExist:
		return fmt.Errorf("%s: %w", f.Message, fs.ErrNotExist)
	case failRefused:
		return &sandboxes.RefusedError{Operation: h.Op, Reason: f.Message}
	default:
		return fmt.Errorf("%s: %s", h.Op, f.Message)
	}
}

// Start implements sandboxes.Sandbox.
func (c *Caller) Start(ctx context.Context, cmd sandboxes.Cmd) (sandboxes.Process, error) {
	h := &header{
		Op: opExec, Args: cmd.Args, Env: environ(cmd.Env), Path: cmd.Dir, User: cmd.User,
		TimeoutMS: cmd.Timeout.Milliseconds(), Limit: cmd.OutputLimit, Untrusted: cmd.Untrusted,
	}
	if cmd.Terminal != nil {
		h.Terminal = &cmd.Terminal.Size
	}
	stream, in, out, err := c.open(h)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = stream.SetDeadline(time.Now()) })
	kind, payload, err := in.next()
	if !stop() && ctx.Err() != nil {
		stream.Close()
		return nil, context.Cause(ctx)
	}
	switch {
	case err != nil:
		stream.Close()
		return nil, fmt.Errorf("start %q: %w", first(cmd.Args), c.lost())
	case kind == frameFail:
		stream.Close()
		return nil, failed(h, payload)
	}
	var reply started
	if err := json.Unmarshal(payload, &reply); err != nil {
		stream.Close()
		return nil, fmt.Errorf("start %q: read the box's answer: %w", first(cmd.Args), rawjson.Plain(err))
	}
	p := &process{c: c, job: reply.Job, done: make(chan struct{})}
	go func() {
		stdin := cmd.Stdin
		if stdin == nil {
			stdin = bytes.NewReader(nil)
		}
		if _, err := io.Copy(out.stream(frameData), stdin); err == nil {
			_ = out.write(frameEOF, nil)
		}
	}()
	if cmd.Terminal != nil {
		go p.resize(out, cmd.Terminal.Resized)
	}
	go p.follow(stream, h, in, cmd.Stdout, cmd.Stderr)
	return p, nil
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func environ(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

type process struct {
	c    *Caller
	job  uint64
	done chan struct{}
	exit schema.Exit
	err  error
}

// follow copies output until the command exits.
func (p *process) follow(stream net.Conn, h *header, in *frameReader, stdout, stderr io.Writer) {
	defer close(p.done)
	defer stream.Close()
	for {
		kind, payload, err := in.next()
		if err != nil {
			p.err = p.c.lost()
			return
		}
		switch kind {
		case frameStdout:
			p.copy(stdout, payload)
		case frameStderr:
			p.copy(stderr, payload)
		case frameOK:
			if err := json.Unmarshal(payload, &p.exit); err != nil && p.err == nil {
				p.err = fmt.Errorf("read the exit: %w", err)
			}
			return
		case frameFail:
			p.err = failed(h, payload)
			return
		}
	}
}

// resize passes the sizes of the terminal on until the command exits.
func (p *process) resize(out *frameWriter, sizes <-chan sandboxes.TerminalSize) {
	for {
		select {
		case <-p.done:
			return
		case s := <-sizes:
			_ = out.write(frameResize, encodeSize(s)) // follow sees a lost box, too
		}
	}
}

func (p *process) copy(w io.Writer, b []byte) {
	if w == nil || p.err != nil {
		return
	}
	if _, err := w.Write(b); err != nil {
		p.err = fmt.Errorf("write output: %w", err)
	}
}

// Wait implements sandboxes.Process.
func (p *process) Wait() (schema.Exit, error) {
	<-p.done
	return p.exit, p.err
}

// Signal implements sandboxes.Process.
func (p *process) Signal(ctx context.Context, s os.Signal) error {
	n, ok := s.(syscall.Signal)
	if !ok {
		return fmt.Errorf("signal %v is not known", s)
	}
	select {
	case <-p.done:
		return nil
	default:
	}
	return p.c.call(ctx, &header{Op: opSignal, Job: p.job, Signal: int(n)}, nil, nil, nil)
}

// KillAll implements sandboxes.Sandbox.
func (c *Caller) KillAll(ctx context.Context) error {
	return c.call(ctx, &header{Op: opKillAll}, nil, nil, nil)
}

// Release implements sandboxes.Sandbox.
func (c *Caller) Release(ctx context.Context, folders []string) (sandboxes.Released, error) {
	var out sandboxes.Released
	err := c.call(ctx, &header{Op: opRelease, Folders: folders}, nil, nil, &out)
	return out, err
}

// Spare implements sandboxes.Sandbox.
func (c *Caller) Spare(ctx context.Context) error {
	return c.call(ctx, &header{Op: opSpare}, nil, nil, nil)
}

// Freeze stops every process with SIGSTOP. Backends with a freezer of their own
// use that instead.
func (c *Caller) Freeze(ctx context.Context) error {
	return c.call(ctx, &header{Op: opFreeze}, nil, nil, nil)
}

// Thaw undoes Freeze.
func (c *Caller) Thaw(ctx context.Context) error {
	return c.call(ctx, &header{Op: opThaw}, nil, nil, nil)
}

// Files implements sandboxes.Sandbox.
func (c *Caller) Files() sandboxes.Files { return files{c} }

type files struct{ c *Caller }

// maxList is the most bytes of the list of a folder: 1 KB for each file.
const maxList = sandboxes.MaxList << 10

func (f files) Read(ctx context.Context, path string, w io.Writer, limit int64) error {
	return f.c.call(ctx, &header{Op: opRead, Path: path, Limit: limit}, nil, atMost(w, path, limit), nil)
}

func (f files) Write(ctx context.Context, path string, r io.Reader, mode fs.FileMode, owner string) error {
	return f.c.call(ctx, &header{Op: opWrite, Path: path, Mode: uint32(mode), Owner: owner}, r, nil, nil)
}

func (f files) Stat(ctx context.Context, path string) (info sandboxes.FileInfo, err error) {
	err = f.c.call(ctx, &header{Op: opStat, Path: path}, nil, nil, &info)
	return info, err
}

func (f files) List(ctx context.Context, dir string) (list []sandboxes.FileInfo, err error) {
	h := &header{Op: opList, Path: dir}
	var b bytes.Buffer
	if err := f.c.call(ctx, h, nil, atMost(&b, dir+": the list of its files", maxList), nil); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b.Bytes(), &list); err != nil {
		return nil, fmt.Errorf("%s: read the box's answer: %w", h.Op, rawjson.Plain(err))
	}
	return list, nil
}

func (f files) Mkdir(ctx context.Context, dir string, mode fs.FileMode, owner string) error {
	return f.c.call(ctx, &header{Op: opMkdir, Path: dir, Mode: uint32(mode), Owner: owner}, nil, nil, nil)
}

func (f files) Empty(ctx context.Context, dir string, mode fs.FileMode, owner string) error {
	return f.c.call(ctx, &header{Op: opEmpty, Path: dir, Mode: uint32(mode), Owner: owner}, nil, nil, nil)
}

func (f files) Remove(ctx context.Context, path string) error {
	return f.c.call(ctx, &header{Op: opRemove, Path: path}, nil, nil, nil)
}

func (f files) TarIn(ctx context.Context, dir string, r io.Reader, owner string) error {
	return f.c.call(ctx, &header{Op: opTarIn, Path: dir, Owner: owner}, r, nil, nil)
}

func (f files) TarOut(ctx context.Context, path string, w io.Writer, o sandboxes.TarOptions) error {
	return f.c.call(ctx, &header{Op: opTarOut, Path: path, Limit: o.Limit, Exclude: o.Exclude, Links: o.Links}, nil, atMost(w, path, o.Limit), nil)
}

// atMost bounds the bytes that a box sends. The box has the same limit, but its owner may
// have changed it.
func atMost(w io.Writer, path string, limit int64) io.Writer {
	return &limitedWriter{w: w, left: limit, err: &sandboxes.TooLargeError{Path: path, Limit: limit}}
}
