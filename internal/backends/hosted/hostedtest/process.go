package hostedtest

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is a process of a place. The end of a stream with its events ends no process,
// and output without a reader is lost.
type Process struct {
	cmd    *exec.Cmd
	killed chan struct{} // its output counts no more
	kill   sync.Once
	ended  chan struct{}

	in    sync.Mutex
	stdin io.WriteCloser // nil after CloseInput

	mu      sync.Mutex
	readers map[chan Event]chan struct{} // the value is closed when the reader leaves
	last    *End                         // nil: it lives
}

// Event is one of a process: its start, output, its end, or a sign of life.
type Event struct {
	Pid    int // of the start
	Stdout []byte
	Stderr []byte
	End    *End
}

// End is the end of a process.
type End struct {
	Code          int
	Exited        bool           // not by a signal
	Signal        syscall.Signal // if it is one
	Status, Error string
}

// chunk is the most output of one event.
const chunk = 32 << 10

// run reads the output until the end of the process, and then calls over.
func (p *Process) run(outputs [2]io.ReadCloser, over func()) {
	p.tell(Event{Pid: p.Pid()})
	var all sync.WaitGroup
	for i, r := range outputs {
		all.Go(func() {
			for buf := make([]byte, chunk); ; {
				n, err := r.Read(buf)
				if data := append([]byte(nil), buf[:n]...); n > 0 && i == 0 {
					p.tell(Event{Stdout: data})
				} else if n > 0 {
					p.tell(Event{Stderr: data})
				}
				if err != nil {
					return
				}
			}
		})
	}
	read := make(chan struct{})
	go func() {
		all.Wait()
		close(read)
	}()
	select {
	case <-read:
	case <-p.killed:
	}
	err := p.cmd.Wait()
	<-read
	over()
	end := &End{Code: p.cmd.ProcessState.ExitCode(), Exited: p.cmd.ProcessState.Exited(), Status: p.cmd.ProcessState.String()}
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		end.Signal = ws.Signal()
	}
	if err != nil {
		end.Error = err.Error()
	}
	p.mu.Lock()
	p.last = end
	p.mu.Unlock()
	p.tell(Event{End: end})
}

// Pid returns the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Last returns the end of the process; nil: it lives.
func (p *Process) Last() *End {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// Read returns a channel with the events from now on, for Serve.
func (p *Process) Read() chan Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := make(chan Event, 64)
	p.readers[events] = make(chan struct{})
	return events
}

// leave ends the reading of a channel.
func (p *Process) leave(events chan Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.readers[events])
	delete(p.readers, events)
}

// tell gives an event to each reader. It waits for slow ones.
func (p *Process) tell(e Event) {
	p.mu.Lock()
	to := make(map[chan Event]chan struct{}, len(p.readers))
	for events, left := range p.readers {
		to[events] = left
	}
	p.mu.Unlock()
	for events, left := range to {
		select {
		case events <- e:
		case <-left:
		}
	}
}

// ErrCut is the end of a stream that a test breaks.
var ErrCut = errors.New("the connection to the sandbox is lost")

// Serve sends the events until the end of the process or of the stream, and an empty one
// after each pause of the length every.
func (p *Process) Serve(ctx context.Context, cut chan struct{}, every time.Duration, events chan Event, send func(Event) error) error {
	defer p.leave(events)
	ping := time.NewTicker(every)
	defer ping.Stop()
	for {
		var e Event
		select {
		case e = <-events:
		case <-ping.C:
		case <-cut:
			return ErrCut
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := send(e); err != nil || e.End != nil {
			return err
		}
	}
}

// Input writes to the process.
func (p *Process) Input(data []byte) error {
	p.in.Lock()
	defer p.in.Unlock()
	if p.stdin == nil {
		return errors.New("stdin not enabled or closed")
	}
	_, err := p.stdin.Write(data)
	return err
}

// CloseInput ends the input.
func (p *Process) CloseInput() {
	p.in.Lock()
	defer p.in.Unlock()
	if p.stdin != nil {
		_ = p.stdin.Close() // the process may have ended
		p.stdin = nil
	}
}

// Signal sends a signal to the process alone, not to its children.
func (p *Process) Signal(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s) // it may have ended
	p.kill.Do(func() { close(p.killed) })
}
