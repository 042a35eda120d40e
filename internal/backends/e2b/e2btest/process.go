package e2btest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/turngate/turngate/internal/backends/e2b/envd"
	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
)

// processes is envd's process service.
type processes struct{ server *Server }

// process is a process that envd started.
type process struct {
	*hostedtest.Process
	config *envd.ProcessConfig
	tag    *string
}

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

// living lists the processes that live.
func (sb *sandbox) living() (all []*process) {
	living := sb.Processes()
	sb.mu.Lock()
	defer sb.mu.Unlock()
	for _, p := range sb.procs {
		if living[p.Pid()] == p.Process {
			all = append(all, p)
		}
	}
	return all
}

// find returns the process that a selector names.
func (sb *sandbox) find(s *envd.ProcessSelector) (*process, error) {
	for _, p := range sb.living() {
		if uint32(p.Pid()) == s.GetPid() || s.GetTag() != "" && p.tag != nil && *p.tag == s.GetTag() { //nolint:gosec // a pid fits
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
	c := r.Msg.GetProcess()
	ms, _ := strconv.Atoi(r.Header().Get("Connect-Timeout-Ms")) // empty: no limit
	started, events, err := sb.Start(hostedtest.Command{
		Args: append([]string{c.GetCmd()}, c.GetArgs()...), Dir: c.GetCwd(), Env: c.GetEnvs(),
		Stdin: r.Msg.Stdin == nil || r.Msg.GetStdin(), Limit: time.Duration(ms) * time.Millisecond,
	})
	if err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	sb.mu.Lock()
	sb.procs = append(sb.procs, &process{started, c, r.Msg.Tag})
	sb.mu.Unlock()
	send := func(e *envd.ProcessEvent) error { return out.Send(&envd.StartResponse{Event: e}) }
	return serve(ctx, started, cut, r.Header(), events, send)
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
	return serve(ctx, proc.Process, cut, r.Header(), proc.Read(), send)
}

// serve sends the events until the end of the process or of the stream.
func serve(ctx context.Context, p *hostedtest.Process, cut chan struct{}, h http.Header, events chan hostedtest.Event, send func(*envd.ProcessEvent) error) error {
	every := pingEvery
	if n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval")); err == nil && n > 0 {
		every = time.Duration(n) * time.Second
	}
	err := p.Serve(ctx, cut, every, events, func(e hostedtest.Event) error { return send(event(e)) })
	if errors.Is(err, hostedtest.ErrCut) {
		err = connect.NewError(connect.CodeUnavailable, err)
	}
	return err
}

func event(e hostedtest.Event) *envd.ProcessEvent {
	switch {
	case e.Pid != 0:
		return &envd.ProcessEvent{Event: &envd.ProcessEvent_Start{Start: &envd.ProcessEvent_StartEvent{Pid: uint32(e.Pid)}}} //nolint:gosec // a pid fits
	case e.Stdout != nil:
		return &envd.ProcessEvent{Event: &envd.ProcessEvent_Data{Data: &envd.ProcessEvent_DataEvent{Output: &envd.ProcessEvent_DataEvent_Stdout{Stdout: e.Stdout}}}}
	case e.Stderr != nil:
		return &envd.ProcessEvent{Event: &envd.ProcessEvent_Data{Data: &envd.ProcessEvent_DataEvent{Output: &envd.ProcessEvent_DataEvent_Stderr{Stderr: e.Stderr}}}}
	case e.End != nil:
		end := &envd.ProcessEvent_EndEvent{ExitCode: int32(e.End.Code), Exited: e.End.Exited, Status: e.End.Status} //nolint:gosec // an exit code fits
		if e.End.Error != "" {
			end.Error = &e.End.Error
		}
		return &envd.ProcessEvent{Event: &envd.ProcessEvent_End{End: end}}
	}
	return &envd.ProcessEvent{Event: &envd.ProcessEvent_Keepalive{Keepalive: &envd.ProcessEvent_KeepAlive{}}}
}

// List implements envdconnect.ProcessHandler.
func (p processes) List(_ context.Context, r *connect.Request[envd.ListRequest]) (*connect.Response[envd.ListResponse], error) {
	sb, _, err := p.sandboxOf(r.Header())
	if err != nil {
		return nil, err
	}
	out := &envd.ListResponse{}
	for _, proc := range sb.living() {
		out.Processes = append(out.Processes, &envd.ProcessInfo{Config: proc.config, Pid: uint32(proc.Pid()), Tag: proc.tag}) //nolint:gosec // a pid fits
	}
	return connect.NewResponse(out), nil
}

// SendInput implements envdconnect.ProcessHandler.
func (p processes) SendInput(_ context.Context, r *connect.Request[envd.SendInputRequest]) (*connect.Response[envd.SendInputResponse], error) {
	proc, err := p.of(r.Header(), r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	if err := proc.Input(r.Msg.GetInput().GetStdin()); err != nil {
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
	proc.CloseInput()
	return connect.NewResponse(&envd.CloseStdinResponse{}), nil
}

// SendSignal implements envdconnect.ProcessHandler.
func (p processes) SendSignal(_ context.Context, r *connect.Request[envd.SendSignalRequest]) (*connect.Response[envd.SendSignalResponse], error) {
	proc, err := p.of(r.Header(), r.Msg.GetProcess())
	if err != nil {
		return nil, err
	}
	proc.Signal(syscall.Signal(r.Msg.GetSignal()))
	return connect.NewResponse(&envd.SendSignalResponse{}), nil
}

func (p processes) of(h http.Header, s *envd.ProcessSelector) (*process, error) {
	sb, _, err := p.sandboxOf(h)
	if err != nil {
		return nil, err
	}
	return sb.find(s)
}
