package modaltest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turngate/turngate/internal/backends/hosted/hostedtest"
)

// router runs commands in sandboxes. As there, the end of a connection ends no command, and
// its output is kept.
type router struct {
	pb.UnimplementedTaskCommandRouterServer
	*Server
}

var errEnded = status.Error(codes.NotFound, "the sandbox has ended")

// task returns the sandbox of a task, if the call has its token.
func (r *router) task(ctx context.Context, id string) (*sandbox, error) {
	sb := r.find(id)
	if sb == nil {
		return nil, status.Errorf(codes.NotFound, "no task %q", id)
	}
	if first(ctx, "authorization") != "Bearer "+sb.token {
		return nil, status.Error(codes.Unauthenticated, "the token of the task is not valid")
	}
	return sb, nil
}

// exec returns a command of a task.
func (r *router) exec(ctx context.Context, task, id string) (*sandbox, *command, error) {
	sb, err := r.task(ctx, task)
	if err != nil {
		return nil, nil, err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if c := sb.execs[id]; c != nil {
		return sb, c, nil
	}
	return nil, nil, status.Errorf(codes.NotFound, "no command %q", id)
}

// TaskExecStart implements pb.TaskCommandRouterServer. A call that comes again has started
// nothing else.
func (r *router) TaskExecStart(ctx context.Context, q *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	sb, err := r.task(ctx, q.GetTaskId())
	if err != nil {
		return nil, err
	}
	if q.GetPtyInfo() != nil || len(q.GetCommandArgs()) == 0 {
		return nil, status.Error(codes.Unimplemented, "the test server has no terminals, and wants a command")
	}
	c := hostedtest.Command{Args: q.GetCommandArgs(), Dir: q.GetWorkdir(), Env: map[string]string{}, Stdin: true, Limit: time.Duration(q.GetTimeoutSecs()) * time.Second}
	for _, source := range q.GetSecretSources() {
		maps.Copy(c.Env, source.GetEnv().GetContents())
	}
	if err := sb.start(q.GetExecId(), c); err != nil { //nolint:contextcheck // the command outlives the call
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &pb.TaskExecStartResponse{}, nil
}

// TaskExecStdinWrite implements pb.TaskCommandRouterServer.
func (r *router) TaskExecStdinWrite(ctx context.Context, q *pb.TaskExecStdinWriteRequest) (*pb.TaskExecStdinWriteResponse, error) {
	_, c, err := r.exec(ctx, q.GetTaskId(), q.GetExecId())
	if err != nil {
		return nil, err
	}
	if err := c.input(q.GetOffset(), q.GetData(), q.GetEof()); err != nil {
		return nil, err
	}
	return &pb.TaskExecStdinWriteResponse{}, nil
}

// chunk is the most output of one message.
const chunk = 32 << 10

// TaskExecStdioRead implements pb.TaskCommandRouterServer.
func (r *router) TaskExecStdioRead(q *pb.TaskExecStdioReadRequest, out grpc.ServerStreamingServer[pb.TaskExecStdioReadResponse]) error {
	sb, c, err := r.exec(out.Context(), q.GetTaskId(), q.GetExecId())
	if err != nil {
		return err
	}
	lost, from := sb.streams(), c.stdout
	if q.GetFileDescriptor() == pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR {
		from = c.stderr
	}
	for offset := int(q.GetOffset()); ; { //nolint:gosec // an offset fits
		data, more := from.after(offset)
		if len(data) > 0 {
			if err := out.Send(pb.TaskExecStdioReadResponse_builder{Data: data}.Build()); err != nil {
				return err
			}
			offset += len(data)
			continue
		}
		if more == nil {
			return nil
		}
		select {
		case <-more:
		case <-lost:
			return status.Error(codes.DataLoss, "the stream is lost")
		case <-sb.over:
			return errEnded
		case <-out.Context().Done():
			return status.FromContextError(out.Context().Err()).Err()
		case <-r.life.Done():
			return status.Error(codes.Unavailable, "the server stops")
		}
	}
}

// TaskExecWait implements pb.TaskCommandRouterServer.
func (r *router) TaskExecWait(ctx context.Context, q *pb.TaskExecWaitRequest) (*pb.TaskExecWaitResponse, error) {
	sb, c, err := r.exec(ctx, q.GetTaskId(), q.GetExecId())
	if err != nil {
		return nil, err
	}
	select {
	case <-c.ended:
	case <-sb.over:
		return nil, errEnded
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-r.life.Done():
		return nil, status.Error(codes.Unavailable, "the server stops")
	}
	code, signal := c.exit()
	return pb.TaskExecWaitResponse_builder{Code: code, Signal: signal}.Build(), nil
}

// TaskExecPoll implements pb.TaskCommandRouterServer.
func (r *router) TaskExecPoll(ctx context.Context, q *pb.TaskExecPollRequest) (*pb.TaskExecPollResponse, error) {
	_, c, err := r.exec(ctx, q.GetTaskId(), q.GetExecId())
	if err != nil || !c.hasEnded() {
		return &pb.TaskExecPollResponse{}, err
	}
	code, signal := c.exit()
	return pb.TaskExecPollResponse_builder{Code: code, Signal: signal}.Build(), nil
}

// command is a process that a client started.
type command struct {
	*hostedtest.Process
	stdout, stderr *kept
	ended          chan struct{}
	end            *hostedtest.End // valid after ended

	in      sync.Mutex
	written uint64 // bytes of the input that have arrived
}

// run keeps the output of a process until its end.
func (c *command) run(events chan hostedtest.Event) {
	_ = c.Serve(context.Background(), nil, time.Hour, events, func(e hostedtest.Event) error {
		c.stdout.add(e.Stdout)
		c.stderr.add(e.Stderr)
		c.end = e.End
		return nil
	})
	c.stdout.over()
	c.stderr.over()
	close(c.ended)
}

func (c *command) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// exit returns the end of a process that has ended.
func (c *command) exit() (code, signal *int32) {
	n, sig := int32(c.end.Code), int32(c.end.Signal) //nolint:gosec // they fit
	if !c.end.Exited {
		return nil, &sig
	}
	return &n, nil
}

// input writes bytes from an offset on, without the ones that have arrived already.
func (c *command) input(offset uint64, data []byte, eof bool) error {
	c.in.Lock()
	defer c.in.Unlock()
	if offset > c.written {
		return status.Error(codes.OutOfRange, fmt.Sprintf("the input has %d bytes, and these begin at %d", c.written, offset))
	}
	data = data[min(c.written-offset, uint64(len(data))):]
	if len(data) > 0 {
		if err := c.Input(data); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	c.written += uint64(len(data))
	if eof {
		c.CloseInput()
	}
	return nil
}

// kept is the output of a process.
type kept struct {
	mu    sync.Mutex
	data  bytes.Buffer
	ended bool
	more  chan struct{} // closed at the next change
}

func newKept() *kept { return &kept{more: make(chan struct{})} }

func (k *kept) add(data []byte) { k.change(func() { k.data.Write(data) }) }

func (k *kept) over() { k.change(func() { k.ended = true }) }

// change makes a change and wakes the readers.
func (k *kept) change(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
	close(k.more)
	k.more = make(chan struct{})
}

// after returns the next bytes from an offset on. Without any it returns a channel that is
// closed at the next change, or nil at the end.
func (k *kept) after(offset int) (data []byte, more <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.data.Bytes()
	data = bytes.Clone(all[min(offset, len(all)):min(offset+chunk, len(all))])
	if len(data) == 0 && k.ended {
		return nil, nil
	}
	return data, k.more
}
