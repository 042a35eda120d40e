package box

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/turngate/turngate/schema"
)

const (
	// outputGrace bounds the reading of output after the command itself has
	// ended, if a process that it left behind still holds the pipe.
	outputGrace   = 2 * time.Second
	defaultOutput = 64 << 20
)

// started reports to the worker that a command runs.
type started struct {
	Job uint64 `json:"job"`
}

// exec runs one command. The command is killed if its stream is closed early.
func (s *server) exec(h *header, in *frameReader, out *frameWriter) error {
	var pipes pipes
	defer pipes.close()
	j, err := s.place.start(h, &pipes)
	if err != nil {
		return err
	}
	pipes.closeChildEnds()
	if err := out.json(frameStarted, started{j.number()}); err != nil {
		j.kill()
	}
	if h.TimeoutMS > 0 {
		defer s.clock.after(ms(h.TimeoutMS), j.timeout)()
	}
	ended := make(chan struct{})
	go func() {
		s.feed(in, pipes.stdin)
		select {
		case <-ended:
		default:
			j.kill() // the worker closed the stream
		}
	}()
	limit := h.Limit
	if limit <= 0 {
		limit = defaultOutput
	}
	var pumps sync.WaitGroup
	var outBytes, errBytes int64
	pumps.Go(func() { outBytes = pump(pipes.stdout, out.stream(frameStdout), limit) })
	if pipes.stderr != nil {
		pumps.Go(func() { errBytes = pump(pipes.stderr, out.stream(frameStderr), limit) })
	}
	exit := j.wait()
	forget := s.clock.after(outputGrace, func() {
		_ = pipes.stdout.SetReadDeadline(time.Now())
		if pipes.stderr != nil {
			_ = pipes.stderr.SetReadDeadline(time.Now())
		}
	})
	pumps.Wait()
	forget()
	close(ended)
	pipes.drain()
	exit.StdoutBytes, exit.StderrBytes = outBytes, errBytes
	return out.json(frameOK, exit)
}

// feed passes stdin and the sizes of a terminal on until the stream ends. It returns
// when the worker has closed the stream.
func (s *server) feed(in *frameReader, stdin io.WriteCloser) {
	other := func(kind byte, payload []byte) {
		if t, ok := stdin.(typed); ok && kind == frameResize {
			if size, ok := decodeSize(payload); ok {
				t.resize(size)
			}
		}
	}
	_, err := io.Copy(stdin, &dataReader{f: in, other: other})
	stdin.Close()
	for {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return
		}
		var kind byte
		var payload []byte
		if kind, payload, err = in.next(); err != nil {
			return
		}
		other(kind, payload)
	}
}

// pipes are the three streams of one command, with both ends. With a terminal the
// command has the same end three times, and stderr is nil.
type pipes struct {
	stdin                       io.WriteCloser
	stdout, stderr              *os.File
	childIn, childOut, childErr *os.File
}

// terminal gives the command a terminal and keeps the other end.
func (p *pipes) terminal(ours, user *os.File) {
	p.stdin, p.stdout = typed{ours}, ours
	p.childIn, p.childOut, p.childErr = user, user, user
}

func (p *pipes) open() error {
	var errs [3]error
	var stdin *os.File
	p.childIn, stdin, errs[0] = os.Pipe()
	p.stdin = stdin
	p.stdout, p.childOut, errs[1] = os.Pipe()
	p.stderr, p.childErr, errs[2] = os.Pipe()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("open pipes: %w", err)
		}
	}
	return nil
}

// drain reads on for processes that the command has left and that still write to its
// output. Without a reader their writes would fail. A terminal hangs up.
func (p *pipes) drain() {
	if p.stderr == nil {
		return
	}
	for _, f := range []*os.File{p.stdout, p.stderr} {
		_ = f.SetReadDeadline(time.Time{})
		go func() {
			defer f.Close()
			_, _ = io.Copy(io.Discard, f)
		}()
	}
	p.stdout, p.stderr = nil, nil
}

func (p *pipes) closeChildEnds() {
	for _, f := range []*os.File{p.childIn, p.childOut, p.childErr} {
		f.Close()
	}
}

func (p *pipes) close() {
	if _, ok := p.stdin.(typed); p.stdin != nil && !ok {
		p.stdin.Close()
	}
	for _, f := range []*os.File{p.stdout, p.stderr, p.childIn, p.childOut, p.childErr} {
		if f != nil {
			f.Close()
		}
	}
}

// pump copies output until its end. It counts and drops output above limit, so
// that the command never blocks on a full pipe without a reader.
func pump(r io.Reader, w io.Writer, limit int64) (total int64) {
	buf := make([]byte, chunk)
	for {
		n, err := r.Read(buf)
		if keep := min(int64(n), max(limit-total, 0)); keep > 0 {
			if _, werr := w.Write(buf[:keep]); werr != nil {
				limit = 0
			}
		}
		total += int64(n)
		if err != nil {
			return total
		}
	}
}

func exitOf(s syscall.WaitStatus) schema.Exit {
	if s.Signaled() {
		return schema.Exit{Code: 128 + int(s.Signal()), Signal: s.Signal().String()}
	}
	return schema.Exit{Code: s.ExitStatus()}
}
