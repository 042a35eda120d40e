package e2btest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/turngate/turngate/sandboxes/e2b/envd"
)

// processes is envd's process service. As there, the end of a stream ends no process, and
// output that nobody reads is lost.
type processes struct{ server *Server }

// process is a process that envd started.
type process struct {
	config *envd.ProcessConfig
	tag    *string
	cmd    *exec.Cmd
	killed chan struct{} // its output counts no more
	kill   sync.Once
	ended  chan struct{}

	in    sync.Mutex
	stdin io.WriteCloser // nil after CloseStdin

	mu      sync.Mutex
	readers map[chan *envd.ProcessEvent]chan struct{} // the value is closed when the reader leaves
}

// chunk is the most output of one event.
const chunk = 32 << 10

// pingEvery is the time between two signs of life without a wish of the client.
const pingEvery = 90 * time.Second

// sandboxOf returns the sandbox of a request.
func (p processes) sandboxOf(h http.Header) (*sandbox, chan struct{}, error) {
	sb, cut := p.server.find(h.Get("E2b-Sandbox-Id"))
	if sb == nil {
		return nil, nil, connect.NewError(connect.CodeNotFound, errors.New("the sandbox is gone"))
	}
	return sb, cut, nil
}

// find returns the process that a selector names.
func (sb *sandbox) find(s *envd.ProcessSelector) (*process, error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	for pid, p := range sb.procs {
		if pid == s.GetPid() || s.GetTag() != "" && p.tag != nil && *p.tag == s.GetTag() {
			return p, nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process %s not found", s))
}

// Start implements envdconnect.ProcessHandler.
func (p processes) Start(ctx context.Context, r *connect.Request[envd.StartRequest], out *connect.ServerStream[envd.StartResponse]) error {
	sb, cut, err := p.sandboxOf(r.Header())
	if err != nil {
		return err
	}
	if r.Msg.GetPty() != nil {
		return connect.NewError(connect.CodeUnimplemented, errors.New("the test server has no terminals"))
	}
	proc, events, err := sb.start(r.Msg, r.Header().Get("Connect-Timeout-Ms"))
	if err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	send := func(e *envd.ProcessEvent) error { return out.Send(&envd.StartResponse{Event: e}) }
	return proc.serve(ctx, cut, r.Header(), events, send)
}

// Connect implements envdconnect.ProcessHandler.
func (p processes) Connect(ctx context.Context, r *connect.Request[envd.ConnectRequest], out *connect.ServerStream[envd.ConnectResponse]) error {
	sb, cut, err := p.sandboxOf(r.Header())
	if err != nil {
		return err
	}
	proc, err := sb.find(r.Msg.GetProcess())
	if err != nil {
		return err
	}
	send := func(e *envd.ProcessEvent) error { return out.Send(&envd.ConnectResponse{Event: e}) }
	return proc.serve(ctx, cut, r.Header(), proc.read(), send)
}

// start starts a process. The channel has all its events.
func (sb *sandbox) start(r *envd.StartRequest, timeout string) (*process, chan *envd.ProcessEvent, error) {
	c := r.GetProcess()
	dir, err := sb.path(c.GetCwd())
	if err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, nil, fmt.Errorf("cwd '%s' does not exist", dir)
	}
	p := &process{config: c, tag: r.Tag, killed: make(chan struct{}), ended: make(chan struct{}), readers: map[chan *envd.ProcessEvent]chan struct{}{}}
	p.cmd = exec.Command("/bin/sh", append([]string{"-c", `exec "$@"`, "--", c.GetCmd()}, c.GetArgs()...)...)
	p.cmd.Dir = dir
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + sb.home, "USER=root", "LOGNAME=root"}
	for key, value := range c.GetEnvs() {
		p.cmd.Env = append(p.cmd.Env, key+"="+value)
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // keys of a terminal are for the test
	var outputs [2]io.ReadCloser
	if outputs[0], err = p.cmd.StdoutPipe(); err == nil {
		outputs[1], err = p.cmd.StderrPipe()
	}
	if err == nil && (r.Stdin == nil || r.GetStdin()) {
		p.stdin, err = p.cmd.StdinPipe()
	}
	if err != nil {
		return nil, nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.gone {
		return nil, nil, errors.New("the sandbox is gone")
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, err
	}
	pid := uint32(p.cmd.Process.Pid) //nolint:gosec // a pid fits
	sb.procs[pid] = p
	events := p.read()
	if ms, err := strconv.Atoi(timeout); err == nil && ms > 0 {
		time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { p.signal(syscall.SIGKILL) })
	}
	go p.run(sb, pid, outputs)
	return p, events, nil
}

// run reads the output of a process until its end.
func (p *process) run(sb *sandbox, pid uint32, outputs [2]io.ReadCloser) {
	defer close(p.ended)
	p.tell(&envd.ProcessEvent{Event: &envd.ProcessEvent_Start{Start: &envd.ProcessEvent_StartEvent{Pid: pid}}})
	var all sync.WaitGroup
	for i, r := range outputs {
		all.Go(func() {
			for buf := make([]byte, chunk); ; {
				n, err := r.Read(buf)
				data := append([]byte(nil), buf[:n]...)
				d := &envd.ProcessEvent_DataEvent{Output: &envd.ProcessEvent_DataEvent_Stdout{Stdout: data}}
				if i == 1 {
					d.Output = &envd.ProcessEvent_DataEvent_Stderr{Stderr: data}
				}
				if n > 0 {
					p.tell(&envd.ProcessEvent{Event: &envd.ProcessEvent_Data{Data: d}})
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
	sb.mu.Lock()
	delete(sb.procs, pid)
	sb.mu.Unlock()
	end := &envd.ProcessEvent_EndEvent{ExitCode: int32(p.cmd.ProcessState.ExitCode()), Exited: p.cmd.ProcessState.Exited(), Status: p.cmd.ProcessState.String()} //nolint:gosec // an exit code fits
	if err != nil {
		text := err.Error()
		end.Error = &text
	}
	p.tell(&envd.ProcessEvent{Event: &envd.ProcessEvent_End{End: end}})
}

// read returns a channel with the events from now on.
func (p *process) read() chan *envd.ProcessEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	events := make(chan *envd.ProcessEvent, 64)
	p.readers[events] = make(chan struct{})
	return events
}

// leave ends the reading of a channel.
func (p *process) leave(events chan *envd.ProcessEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.readers[events])
	delete(p.readers, events)
}

// tell gives an event to each reader. It waits for slow ones.
func (p *process) tell(e *envd.ProcessEvent) {
	p.mu.Lock()
	to := make(map[chan *envd.ProcessEvent]chan struct{}, len(p.readers))
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

// serve sends the events until the end of the process or of the stream.
func (p *process) serve(ctx context.Context, cut chan struct{}, h http.Header, events chan *envd.ProcessEvent, send func(*envd.ProcessEvent) error) error {
	defer p.leave(events)
	every := pingEvery
	if n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval")); err == nil && n > 0 {
		every = time.Duration(n) * time.Second
	}
	ping := time.NewTicker(every)
	defer ping.Stop()
	for {
		var e *envd.ProcessEvent
		select {
		case e = <-events:
		case <-ping.C:
			e = &envd.ProcessEvent{Event: &envd.ProcessEvent_Keepalive{Keepalive: &envd.ProcessEvent_KeepAlive{}}}
		case <-cut:
			return connect.NewError(connect.CodeUnavailable, errors.New("the connection to the sandbox is lost"))
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := send(e); err != nil {
			return err
		}
		if e.GetEnd() != nil {
			return nil
		}
	}
}

// List implements envdconnect.ProcessHandler.
func (p processes) List(_ context.Context, r *connect.Request[envd.ListRequest]) (*connect.Response[envd.ListResponse], error) {
	sb, _, err := p.sandboxOf(r.Header())
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	out := &envd.ListResponse{}
	for pid, proc := range sb.procs {
		out.Processes = append(out.Processes, &envd.ProcessInfo{Config: proc.config, Pid: pid, Tag: proc.tag})
	}
	return connect.NewResponse(out), nil
}

// SendInput implements envdconnect.ProcessHandler.
func (p processes) SendInput(_ context.Context, r *connect.Request[envd.SendInputRequest]) (*connect.Response[envd.SendInputResponse], error) {
	proc, err := p.of(r.Header(), r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	proc.in.Lock()
	defer proc.in.Unlock()
	if proc.stdin == nil {
		return nil, connect.NewError(connect.CodeInternal, errors.New("stdin not enabled or closed"))
	}
	if _, err := proc.stdin.Write(r.Msg.GetInput().GetStdin()); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&envd.SendInputResponse{}), nil
}

// CloseStdin implements envdconnect.ProcessHandler.
func (p processes) CloseStdin(_ context.Context, r *connect.Request[envd.CloseStdinRequest]) (*connect.Response[envd.CloseStdinResponse], error) {
	proc, err := p.of(r.Header(), r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	proc.in.Lock()
	defer proc.in.Unlock()
	if proc.stdin != nil {
		_ = proc.stdin.Close() // the process may have ended
		proc.stdin = nil
	}
	return connect.NewResponse(&envd.CloseStdinResponse{}), nil
}

// SendSignal implements envdconnect.ProcessHandler. The signal reaches the process alone,
// not its children.
func (p processes) SendSignal(_ context.Context, r *connect.Request[envd.SendSignalRequest]) (*connect.Response[envd.SendSignalResponse], error) {
	proc, err := p.of(r.Header(), r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	proc.signal(syscall.Signal(r.Msg.GetSignal()))
	return connect.NewResponse(&envd.SendSignalResponse{}), nil
}

func (p processes) of(h http.Header, s *envd.ProcessSelector) (*process, error) {
	sb, _, err := p.sandboxOf(h)
	if err != nil {
		return nil, err
	}
	return sb.find(s)
}

func (p *process) signal(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s) // it may have ended
	p.kill.Do(func() { close(p.killed) })
}

// graceTime is the time that the processes of a sandbox have to remove what they made on
// this host, which a virtual machine would take with it.
const graceTime = 10 * time.Second

// end ends the processes of a sandbox with their children, and removes its home.
func (sb *sandbox) end() {
	sb.mu.Lock()
	sb.gone = true
	sb.timer.Stop()
	var all []*process
	for _, p := range sb.procs {
		all = append(all, p)
	}
	sb.mu.Unlock()
	late := time.AfterFunc(graceTime, func() {
		for _, p := range all {
			killTree(p.cmd.Process.Pid)
		}
	})
	defer late.Stop()
	for _, p := range all {
		p.signal(syscall.SIGTERM)
		<-p.ended
	}
	os.RemoveAll(sb.home)
}

// killTree kills a process and its children.
func killTree(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP) // it makes no more of them
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, field := range strings.Fields(string(data)) {
		if child, err := strconv.Atoi(field); err == nil {
			killTree(child)
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}
