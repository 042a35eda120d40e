// Package modaltest is a server with the part of Modal's API that turngate uses. Its
// sandboxes are processes of this host, each with a home of its own. It isolates nothing,
// and serves tests alone. A test checks that the official client of Modal works with it.
package modaltest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
)

// Image is the name of the only image of the registry.
const Image = "debian:bookworm"

// Server is a running server. Its control plane and its command routers have the same
// address.
type Server struct {
	URL                  string
	TokenID, TokenSecret string // of the only account

	homes, token string // token: for calls of the control plane
	listener     *listener
	life         context.Context
	mu           sync.Mutex
	apps         map[string]string // name to id
	images       map[string]bool   // id to whether it is built
	all          map[string]*sandbox
	made         []time.Time         // of each sandbox
	no           map[string]*refusal // by method
	unfiltered   bool
}

// refusal is an answer for the next calls of a method.
type refusal struct {
	times int
	code  codes.Code
	after time.Duration
	late  bool // the call does its work, and its answer is lost
}

// Start starts a server, which stops with its sandboxes when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	life, end := context.WithCancel(context.Background())
	s := &Server{
		URL: "http://" + l.Addr().String(), TokenID: "ak-" + rand.Text(), TokenSecret: "as-" + rand.Text(),
		homes: t.TempDir(), token: jwt(), listener: &listener{Listener: l, conns: map[net.Conn]bool{}}, life: life,
		apps: map[string]string{}, images: map[string]bool{}, all: map[string]*sandbox{}, no: map[string]*refusal{},
	}
	srv := grpc.NewServer(grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream))
	pb.RegisterModalClientServer(srv, &control{Server: s})
	pb.RegisterTaskCommandRouterServer(srv, &router{Server: s})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(s.listener) }()
	t.Cleanup(func() {
		for _, i := range s.Sandboxes() {
			s.End(i.ID)
		}
		end()
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

// Env returns the environment of clients of this server.
func (s *Server) Env() []string {
	return []string{"MODAL_SERVER_URL=" + s.URL, "MODAL_TOKEN_ID=" + s.TokenID, "MODAL_TOKEN_SECRET=" + s.TokenSecret, "MODAL_CONFIG_PATH=" + filepath.Join(s.homes, "none.toml"), "NO_PROXY=127.0.0.1"}
}

// Info describes a sandbox.
type Info struct {
	ID         string
	Tags       map[string]string
	Runtime    string
	Closed     bool // it has no network
	MilliCPU   uint32
	MemoryMiB  uint32
	Life, Idle time.Duration
	IsIdle     bool  // it has no command
	Pids       []int // of the commands that live
}

// Sandboxes lists the sandboxes that have not ended.
func (s *Server) Sandboxes() []Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Info
	for _, sb := range s.all {
		if sb.result() == nil {
			list = append(list, sb.info())
		}
	}
	return list
}

// Made returns the times at which sandboxes were made.
func (s *Server) Made() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.made)
}

// Methods of the control plane.
const (
	Create = pb.ModalClient_SandboxCreateV2_FullMethodName
	List   = pb.ModalClient_SandboxListV2_FullMethodName
	Router = pb.ModalClient_SandboxGetCommandRouterAccess_FullMethodName
)

// Refuse answers the next calls of a method with a code, and tells when to try again. 0: it
// does not tell.
func (s *Server) Refuse(method string, times int, code codes.Code, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.no[method] = &refusal{times: times, code: code, after: after}
}

// Lose does the work of the next call of a method, and answers with a code.
func (s *Server) Lose(method string, code codes.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.no[method] = &refusal{times: 1, code: code, late: true}
}

// Unfilter lets lists of sandboxes have those with other tags, too.
func (s *Server) Unfilter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unfiltered = true
}

// Cut breaks all connections, as a network does. Nothing else ends.
func (s *Server) Cut() { s.listener.cut() }

// LoseStreams ends all streams of a sandbox with an error after which Modal's clients do not open
// them again. Its commands go on.
func (s *Server) LoseStreams(id string) {
	if sb := s.find(id); sb != nil {
		sb.mu.Lock()
		defer sb.mu.Unlock()
		close(sb.lost)
		sb.lost = make(chan struct{})
	}
}

// End ends a sandbox with all its processes, and reports whether it was there.
func (s *Server) End(id string) bool { return s.end(id, pb.GenericResult_GENERIC_STATUS_TERMINATED) }

func (s *Server) end(id string, why pb.GenericResult_GenericStatus) bool {
	sb := s.find(id)
	return sb != nil && sb.end(why)
}

// find returns the sandbox of this id or of this task; nil: there is none.
func (s *Server) find(id string) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb := s.all[id]; sb != nil {
		return sb
	}
	for _, sb := range s.all {
		if sb.task == id {
			return sb
		}
	}
	return nil
}

// Make makes a sandbox in the app of this name, as a client that is gone may have done.
func (s *Server) Make(app string, tags map[string]string) error {
	_, err := s.make(s.app(app), tags, pb.Sandbox_builder{TimeoutSecs: 300}.Build())
	return err
}

// app returns the id of an app, which it makes if there is none.
func (s *Server) app(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.apps[name] == "" {
		s.apps[name] = "ap-" + rand.Text()
	}
	return s.apps[name]
}

// jwt returns a token with a time of expiry. Nothing else in it is true.
func jwt() string {
	part := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			panic(err) // these values always encode
		}
		return base64.RawURLEncoding.EncodeToString(data)
	}
	return part(map[string]string{"alg": "none"}) + "." + part(map[string]any{"exp": time.Now().Add(time.Hour).Unix(), "jti": rand.Text()}) + "." + "none"
}

// first returns the first value of a header.
func first(ctx context.Context, name string) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get(name)[:min(len(md.Get(name)), 1)], "")
}

// may checks the account, and the token that the calls about sandboxes need.
func (s *Server) may(ctx context.Context, method string) error {
	if strings.HasPrefix(method, "/modal.task_command_router.") {
		return nil // the router knows the token of each sandbox
	}
	if first(ctx, "x-modal-token-id") != s.TokenID || first(ctx, "x-modal-token-secret") != s.TokenSecret {
		return status.Error(codes.Unauthenticated, "Token ID or secret is not valid")
	}
	if strings.Contains(method, "Sandbox") && first(ctx, "x-modal-auth-token") != s.token {
		return status.Error(codes.Unauthenticated, "the auth token is not valid")
	}
	return nil
}

func (s *Server) unary(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := s.may(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	no, late := s.refuse(info.FullMethod)
	if no != nil && !late {
		return nil, no
	}
	out, err := next(ctx, r)
	return out, cmp.Or(no, err)
}

// refuse returns the error that a test asked for, and whether the call does its work first.
func (s *Server) refuse(method string) (err error, late bool) { //nolint:revive // the error is the value
	s.mu.Lock()
	defer s.mu.Unlock()
	no := s.no[method]
	if no == nil || no.times == 0 {
		return nil, false
	}
	no.times--
	st := status.New(no.code, "refused for a test with the secret "+s.TokenSecret)
	if no.after > 0 {
		policy := pb.RPCRetryPolicy_builder{RetryAfterSecs: float32(no.after.Seconds())}.Build()
		with, err := st.WithDetails(protoadapt.MessageV1Of(policy))
		if err != nil {
			return err, false
		}
		st = with
	}
	return st.Err(), no.late
}

func (s *Server) stream(srv any, st grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := s.may(st.Context(), info.FullMethod); err != nil {
		return err
	}
	return next(srv, st)
}

// listener knows its connections.
type listener struct {
	net.Listener
	mu    sync.Mutex
	conns map[net.Conn]bool
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = true
	return c, nil
}

func (l *listener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close() // it may have ended
	}
	clear(l.conns)
}

// control is the control plane.
type control struct {
	pb.UnimplementedModalClientServer
	*Server
}

// AuthTokenGet implements pb.ModalClientServer.
func (c *control) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: c.token}.Build(), nil
}

// EnvironmentGetOrCreate implements pb.ModalClientServer.
func (c *control) EnvironmentGetOrCreate(context.Context, *pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	settings := pb.EnvironmentSettings_builder{ImageBuilderVersion: "2025.06"}.Build()
	return pb.EnvironmentGetOrCreateResponse_builder{EnvironmentId: "en-test", Metadata: pb.EnvironmentMetadata_builder{Name: "main", Settings: settings}.Build()}.Build(), nil
}

// AppGetOrCreate implements pb.ModalClientServer.
func (c *control) AppGetOrCreate(_ context.Context, r *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	c.mu.Lock()
	there := c.apps[r.GetAppName()] != ""
	c.mu.Unlock()
	if !there && r.GetObjectCreationType() != pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING {
		return nil, status.Errorf(codes.NotFound, "App %q not found", r.GetAppName())
	}
	return pb.AppGetOrCreateResponse_builder{AppId: c.app(r.GetAppName())}.Build(), nil
}

func result(why pb.GenericResult_GenericStatus, exception string) *pb.GenericResult {
	return pb.GenericResult_builder{Status: why, Exception: exception}.Build()
}

// ImageGetOrCreate implements pb.ModalClientServer. A call of
// ImageJoinStreaming builds a new image.
func (c *control) ImageGetOrCreate(_ context.Context, r *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse, error) {
	commands := r.GetImage().GetDockerfileCommands()
	if len(commands) == 0 || !strings.HasPrefix(commands[0], "FROM ") {
		return nil, status.Error(codes.InvalidArgument, "the image begins with no FROM")
	}
	name := strings.TrimPrefix(commands[0], "FROM ")
	id := "im-" + strings.NewReplacer(":", "-", "/", "-").Replace(name)
	out := pb.ImageGetOrCreateResponse_builder{ImageId: id}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch built, known := c.images[id]; {
	case name != Image:
		out.Result = result(pb.GenericResult_GENERIC_STATUS_FAILURE, fmt.Sprintf("image %s not found in the registry", name))
	case built:
		out.Result = result(pb.GenericResult_GENERIC_STATUS_SUCCESS, "")
	case !known:
		c.images[id] = false
	}
	return out.Build(), nil
}

// ImageJoinStreaming implements pb.ModalClientServer.
func (c *control) ImageJoinStreaming(r *pb.ImageJoinStreamingRequest, out grpc.ServerStreamingServer[pb.ImageJoinStreamingResponse]) error {
	c.mu.Lock()
	_, known := c.images[r.GetImageId()]
	if known {
		c.images[r.GetImageId()] = true
	}
	c.mu.Unlock()
	if !known {
		return status.Errorf(codes.NotFound, "Image %q not found", r.GetImageId())
	}
	return out.Send(pb.ImageJoinStreamingResponse_builder{Result: result(pb.GenericResult_GENERIC_STATUS_SUCCESS, ""), EntryId: "1", Eof: true}.Build())
}

// SandboxCreateV2 implements pb.ModalClientServer.
func (c *control) SandboxCreateV2(ctx context.Context, r *pb.SandboxCreateV2Request) (*pb.SandboxCreateV2Response, error) {
	d := r.GetDefinition()
	c.mu.Lock()
	built, app := c.images[d.GetImageId()], slices.Contains(slices.Collect(maps.Values(c.apps)), r.GetAppId())
	c.mu.Unlock()
	switch {
	case !built || !app:
		return nil, status.Errorf(codes.NotFound, "no app %q or no image %q", r.GetAppId(), d.GetImageId())
	case d.GetTimeoutSecs() == 0 || d.GetTimeoutSecs() > 24*3600:
		return nil, status.Error(codes.InvalidArgument, "timeout must be between 1 second and 24 hours")
	case len(d.GetEntrypointArgs()) > 0 || len(d.GetOpenPorts().GetPorts()) > 0 || len(d.GetVolumeMounts()) > 0:
		return nil, status.Error(codes.Unimplemented, "the test server has no first command, ports or volumes")
	}
	sb, err := c.make(r.GetAppId(), tags(r.GetTags()), d)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return pb.SandboxCreateV2Response_builder{SandboxId: sb.id, TaskId: sb.task, CommandRouterAccess: pb.CommandRouterAccess_builder{Jwt: sb.token, Url: c.router(ctx)}.Build()}.Build(), nil
}

// router returns the address of the routers. Modal's Go client wants https in it, and speaks
// without TLS if the control plane is on loopback; the Python client speaks as the address
// says.
func (c *control) router(ctx context.Context) string {
	if first(ctx, "x-modal-client-type") == strconv.Itoa(int(pb.ClientType_CLIENT_TYPE_LIBMODAL_GO)) {
		return "https" + strings.TrimPrefix(c.URL, "http")
	}
	return c.URL
}

// the returns the sandbox of an id.
func (c *control) the(id string) (*sandbox, error) {
	if sb := c.find(id); sb != nil {
		return sb, nil
	}
	return nil, status.Errorf(codes.NotFound, "Sandbox %q not found", id)
}

// SandboxGetCommandRouterAccess implements pb.ModalClientServer.
func (c *control) SandboxGetCommandRouterAccess(ctx context.Context, r *pb.SandboxGetCommandRouterAccessRequest) (*pb.SandboxGetCommandRouterAccessResponse, error) {
	sb, err := c.the(cmp.Or(r.GetSandboxId(), r.GetTaskId()))
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetCommandRouterAccessResponse_builder{Jwt: sb.token, Url: c.router(ctx)}.Build(), nil
}

// SandboxGetTaskIdV2 implements pb.ModalClientServer.
func (c *control) SandboxGetTaskIdV2(_ context.Context, r *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse, error) { //nolint:revive // the name is of the API
	sb, err := c.the(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxGetTaskIdResponse_builder{TaskId: &sb.task}.Build(), nil
}

// SandboxWaitV2 implements pb.ModalClientServer.
func (c *control) SandboxWaitV2(ctx context.Context, r *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	sb, err := c.the(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	limit := time.NewTimer(time.Duration(float64(r.GetTimeout()) * float64(time.Second)))
	defer limit.Stop()
	select {
	case <-sb.over:
	case <-limit.C:
	case <-ctx.Done():
	}
	return pb.SandboxWaitResponse_builder{Result: sb.result()}.Build(), nil
}

// SandboxTerminateV2 implements pb.ModalClientServer.
func (c *control) SandboxTerminateV2(_ context.Context, r *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse, error) {
	sb, err := c.the(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	before := sb.result()
	sb.end(pb.GenericResult_GENERIC_STATUS_TERMINATED)
	return pb.SandboxTerminateResponse_builder{ExistingResult: before}.Build(), nil
}

func tags(list []*pb.SandboxTag) map[string]string {
	all := map[string]string{}
	for _, t := range list {
		all[t.GetTagName()] = t.GetTagValue()
	}
	return all
}

// SandboxTagsGetV2 implements pb.ModalClientServer.
func (c *control) SandboxTagsGetV2(_ context.Context, r *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	sb, err := c.the(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	return pb.SandboxTagsGetResponse_builder{Tags: sb.tagList()}.Build(), nil
}

// pageSize is the most sandboxes in one answer.
const pageSize = 20

// SandboxListV2 implements pb.ModalClientServer, newest first.
func (c *control) SandboxListV2(_ context.Context, r *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	want := tags(r.GetTags())
	var found []*sandbox
	c.mu.Lock()
	for _, sb := range c.all {
		fits := (r.GetAppId() == "" || sb.app == r.GetAppId()) && sb.result() == nil && (r.GetBeforeTimestamp() == 0 || sb.created() < r.GetBeforeTimestamp())
		for name, value := range want {
			fits = fits && (c.unfiltered || sb.tags[name] == value)
		}
		if fits {
			found = append(found, sb)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(found, func(a, b *sandbox) int { return cmp.Compare(b.created(), a.created()) })
	var list []*pb.SandboxInfo
	for _, sb := range found[:min(len(found), pageSize)] {
		list = append(list, pb.SandboxInfo_builder{Id: sb.id, CreatedAt: sb.created(), AppId: sb.app, Tags: sb.tagList(), TaskInfo: pb.TaskInfo_builder{Id: sb.task}.Build()}.Build())
	}
	return pb.SandboxListResponse_builder{Sandboxes: list}.Build(), nil
}

var errTag = errors.New("tags may contain only alphanumeric characters, dashes, periods, or underscores, and must be 63 characters or less")
