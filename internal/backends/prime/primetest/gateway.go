package primetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
	"github.com/turngate/turngate/internal/backends/prime/session"
)

// tokenTime is the life of a token.
const tokenTime = time.Hour

// auth makes a token and tells the way to a sandbox.
func (s *Server) auth(sb *sandbox) map[string]any {
	token := rand.Text()
	sb.mu.Lock()
	sb.tokens = append(sb.tokens, token)
	sb.mu.Unlock()
	return map[string]any{"gateway_url": s.URL, "user_ns": namespace, "job_id": sb.id, "token": token, "expires_at": time.Now().Add(tokenTime).UTC().Format(time.RFC3339)}
}

// admit returns the sandbox of a request to the gateway, or the status of the refusal.
func (s *Server) admit(r *http.Request) (*sandbox, int) {
	sb, _ := s.find(r.PathValue("id"))
	if r.PathValue("namespace") != namespace || sb == nil || s.take(&s.late) {
		return nil, http.StatusBadGateway
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if !slices.Contains(sb.tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
		return nil, http.StatusUnauthorized
	}
	if sb.status != "" {
		return nil, http.StatusGone
	}
	return sb, 0
}

// gateway lets only requests pass that name a sandbox and have its token.
func (s *Server) gateway(h func(http.ResponseWriter, *http.Request, *sandbox)) http.HandlerFunc {
	said := map[int]string{http.StatusBadGateway: "sandbox_not_found", http.StatusGone: "sandbox_terminated", http.StatusUnauthorized: "unauthorized"}
	return func(w http.ResponseWriter, r *http.Request) {
		sb, status := s.admit(r)
		if status != 0 {
			reply(w, status, map[string]any{"error": said[status], "message": "refused by the gateway"})
			return
		}
		h(w, r, sb)
	}
}

// rpc is gateway for the calls of a service.
func (s *Server) rpc(h http.Handler) http.HandlerFunc {
	refuse := connect.NewErrorWriter()
	codes := map[int]connect.Code{http.StatusBadGateway: connect.CodeNotFound, http.StatusGone: connect.CodeNotFound, http.StatusUnauthorized: connect.CodeUnauthenticated}
	return func(w http.ResponseWriter, r *http.Request) {
		sb, status := s.admit(r)
		if status != 0 {
			_ = refuse.Write(w, r, connect.NewError(codes[status], errors.New("refused by the gateway"))) // the client may be gone
			return
		}
		http.StripPrefix("/"+namespace+"/"+sb.id, h).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sandboxKey{}, sb)))
	}
}

type sandboxKey struct{}

func (s *Server) upload(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	path, err := sb.Path(r.URL.Query().Get("path"))
	if err != nil || r.URL.Query().Get("sandbox_id") != sb.id {
		reply(w, http.StatusBadRequest, map[string]any{"error": fmt.Sprint("bad query: ", err)})
		return
	}
	parts, err := r.MultipartReader()
	if err != nil {
		reply(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	part, err := parts.NextPart()
	if err == nil && part.FormName() != "file" {
		err = fmt.Errorf("the form has no file")
	}
	if err == nil {
		err = hostedtest.Write(path, part)
	}
	if err != nil {
		reply(w, http.StatusBadRequest, map[string]any{"error": err.Error()})
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		reply(w, http.StatusInternalServerError, map[string]any{"error": err.Error()})
		return
	}
	reply(w, http.StatusOK, map[string]any{"success": true, "path": path, "size": info.Size(), "timestamp": info.ModTime()})
}

// content returns the file that a query names.
func (sb *sandbox) content(w http.ResponseWriter, r *http.Request) (data []byte, ok bool) {
	path, err := sb.Path(r.URL.Query().Get("path"))
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		reply(w, http.StatusNotFound, map[string]any{"error": err.Error()})
	}
	return data, err == nil
}

func (s *Server) download(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	if data, ok := sb.content(w, r); ok {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(data) // the client may be gone
	}
}

func (s *Server) readFile(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	if data, ok := sb.content(w, r); ok {
		reply(w, http.StatusOK, map[string]any{"content": strings.ToValidUTF8(string(data), string(utf8.RuneError)), "size": len(data)})
	}
}

// sessions is the service of commands.
type sessions struct{ server *Server }

// command is a process with the request that has started it.
type command struct {
	*hostedtest.Process
	asked *session.StartRequest
}

// pingEvery is the time between two signs of life.
const pingEvery = 30 * time.Second

// of returns the sandbox of a call.
func (s sessions) of(ctx context.Context) (*sandbox, chan struct{}, error) {
	sb, _ := ctx.Value(sandboxKey{}).(*sandbox)
	if sb == nil {
		return nil, nil, connect.NewError(connect.CodeNotFound, errors.New("the sandbox is gone"))
	}
	_, cut := s.server.find(sb.id)
	return sb, cut, nil
}

// canonical reports whether an id has the only spelling that the service takes.
func canonical(id string) bool {
	return len(id) == 36 && id == strings.ToLower(id) && strings.Count(id, "-") == 4
}

// Start implements sessionconnect.CommandSessionHandler. The same request again attaches
// to its session.
func (s sessions) Start(ctx context.Context, r *connect.Request[session.StartRequest], out *connect.ServerStream[session.StartResponse]) error {
	sb, cut, err := s.of(ctx)
	if err != nil {
		return err
	}
	if r.Msg.GetPty() != nil || r.Msg.GetCommand().GetUser() != "" {
		return connect.NewError(connect.CodeUnimplemented, errors.New("the test server has no terminals and no users"))
	}
	id := r.Msg.GetSessionUuid()
	if r.Msg.SessionUuid != nil && !canonical(id) {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("session_uuid is no canonical UUID"))
	}
	send := func(e *session.CommandSessionEvent) error { return out.Send(&session.StartResponse{Event: e}) }
	sb.mu.Lock()
	was := sb.sessions[id]
	sb.mu.Unlock()
	if was != nil {
		if !proto.Equal(was.asked, r.Msg) {
			return connect.NewError(connect.CodeFailedPrecondition, errors.New("the session has another command"))
		}
		return attach(ctx, was, cut, send)
	}
	c := r.Msg.GetCommand()
	p, events, err := sb.Start(hostedtest.Command{Args: append([]string{c.GetCmd()}, c.GetArgs()...), Dir: c.GetCwd(), Env: c.GetEnvs(), Stdin: r.Msg.GetStdin()})
	if err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	if id == "" {
		id = fmt.Sprint("pid ", p.Pid())
	}
	sb.mu.Lock()
	sb.sessions[id] = &command{p, r.Msg}
	sb.mu.Unlock()
	return serve(ctx, p, cut, events, send)
}

// attach announces a session that has begun, and serves its further events.
func attach(ctx context.Context, c *command, cut chan struct{}, send func(*session.CommandSessionEvent) error) error {
	events := c.Read()
	if err := send(event(hostedtest.Event{Pid: c.Pid()})); err != nil {
		return err
	}
	if end := c.Last(); end != nil {
		return send(event(hostedtest.Event{End: end}))
	}
	return serve(ctx, c.Process, cut, events, send)
}

// Connect implements sessionconnect.CommandSessionHandler.
func (s sessions) Connect(ctx context.Context, r *connect.Request[session.ConnectRequest], out *connect.ServerStream[session.ConnectResponse]) error {
	sb, cut, err := s.of(ctx)
	if err != nil {
		return err
	}
	c, err := sb.find(r.Msg.GetSession())
	if err != nil {
		return err
	}
	return attach(ctx, c, cut, func(e *session.CommandSessionEvent) error { return out.Send(&session.ConnectResponse{Event: e}) })
}

// find returns the session that a selector names.
func (sb *sandbox) find(s *session.CommandSessionSelector) (*command, error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	for id, c := range sb.sessions {
		if id == s.GetSessionUuid() || uint32(c.Pid()) == s.GetPid() { //nolint:gosec // a pid fits
			return c, nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("session %s not found", s))
}

// serve sends the events until the end of the process or of the stream.
func serve(ctx context.Context, p *hostedtest.Process, cut chan struct{}, events chan hostedtest.Event, send func(*session.CommandSessionEvent) error) error {
	err := p.Serve(ctx, cut, pingEvery, events, func(e hostedtest.Event) error { return send(event(e)) })
	if errors.Is(err, hostedtest.ErrCut) {
		err = connect.NewError(connect.CodeUnavailable, err)
	}
	return err
}

func event(e hostedtest.Event) *session.CommandSessionEvent {
	switch {
	case e.Pid != 0:
		return &session.CommandSessionEvent{Event: &session.CommandSessionEvent_Start{Start: &session.CommandSessionEvent_StartEvent{Pid: uint32(e.Pid)}}} //nolint:gosec // a pid fits
	case e.Stdout != nil:
		return &session.CommandSessionEvent{Event: &session.CommandSessionEvent_Data{Data: &session.CommandSessionEvent_DataEvent{Output: &session.CommandSessionEvent_DataEvent_Stdout{Stdout: e.Stdout}}}}
	case e.Stderr != nil:
		return &session.CommandSessionEvent{Event: &session.CommandSessionEvent_Data{Data: &session.CommandSessionEvent_DataEvent{Output: &session.CommandSessionEvent_DataEvent_Stderr{Stderr: e.Stderr}}}}
	case e.End != nil:
		end := &session.CommandSessionEvent_EndEvent{ExitCode: int32(e.End.Code), Exited: e.End.Exited, Status: e.End.Status} //nolint:gosec // an exit code fits
		if e.End.Error != "" {
			end.Error = &e.End.Error
		}
		return &session.CommandSessionEvent{Event: &session.CommandSessionEvent_End{End: end}}
	}
	return &session.CommandSessionEvent{Event: &session.CommandSessionEvent_Keepalive{Keepalive: &session.CommandSessionEvent_KeepAlive{}}}
}

// List implements sessionconnect.CommandSessionHandler.
func (s sessions) List(ctx context.Context, _ *connect.Request[session.ListRequest]) (*connect.Response[session.ListResponse], error) {
	sb, _, err := s.of(ctx)
	if err != nil {
		return nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	out := &session.ListResponse{}
	for id, c := range sb.sessions {
		if c.Last() == nil {
			out.Sessions = append(out.Sessions, &session.CommandSessionInfo{Command: c.asked.GetCommand(), Pid: uint32(c.Pid()), SessionUuid: &id}) //nolint:gosec // a pid fits
		}
	}
	return connect.NewResponse(out), nil
}

// once reports whether an operation with this id is the first.
func (sb *sandbox) once(id string) (bool, error) {
	if !canonical(id) {
		return false, connect.NewError(connect.CodeInvalidArgument, errors.New("the id is no canonical UUID"))
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	was := sb.inputs[id]
	sb.inputs[id] = true
	return !was, nil
}

// SendInput implements sessionconnect.CommandSessionHandler. The same input again does
// nothing.
func (s sessions) SendInput(ctx context.Context, r *connect.Request[session.SendInputRequest]) (*connect.Response[session.SendInputResponse], error) {
	sb, _, err := s.of(ctx)
	if err != nil {
		return nil, err
	}
	c, err := sb.find(r.Msg.GetSession())
	if err != nil {
		return nil, err
	}
	first, err := sb.once(r.Msg.GetInputUuid())
	if err != nil {
		return nil, err
	}
	if first {
		if err := c.Input(r.Msg.GetInput().GetStdin()); err != nil {
			return nil, connect.NewError(connect.CodeInternal, err)
		}
	}
	if s.server.take(&s.server.lose) {
		return nil, connect.NewError(connect.CodeUnavailable, io.ErrUnexpectedEOF)
	}
	return connect.NewResponse(&session.SendInputResponse{}), nil
}

// SendSignal implements sessionconnect.CommandSessionHandler.
func (s sessions) SendSignal(ctx context.Context, r *connect.Request[session.SendSignalRequest]) (*connect.Response[session.SendSignalResponse], error) {
	sb, _, err := s.of(ctx)
	if err != nil {
		return nil, err
	}
	c, err := sb.find(r.Msg.GetSession())
	if err != nil {
		return nil, err
	}
	first, err := sb.once(r.Msg.GetSignalUuid())
	if err == nil && first {
		c.Signal(syscall.Signal(r.Msg.GetSignal()))
	}
	return connect.NewResponse(&session.SendSignalResponse{}), err
}
