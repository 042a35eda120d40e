package prime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/internal/backends/prime/session"
)

// Bounds of a stream.
const (
	maxEvent   = 8 << 20
	streamTime = 24 * time.Hour // as in the streams of Prime's own client
)

// process is a command session of Prime.
type process struct {
	machine *machine
	id      string // of the session
}

// Process implements hosted.Remote.
func (m *machine) Process() hosted.Process { return &process{machine: m} }

// Run implements hosted.Process. Prime sends no output again from the time of a broken stream, so
// it does not connect to the session again.
func (p *process) Run(ctx context.Context, script string, to hosted.Streams) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, streamTime, errors.New("the stream was open for a day"))
	defer cancel()
	stream, err := p.start(ctx, script)
	if err != nil {
		return "", hosted.CauseOf(ctx, err)
	}
	defer func() { _ = stream.Close() }() // its error is the stream's, which Err has
	for more := true; more; more = stream.Receive() {
		switch e := stream.Msg().GetEvent().GetEvent().(type) {
		case *session.CommandSessionEvent_Start:
			if err := to.Started(); err != nil {
				return "", err
			}
		case *session.CommandSessionEvent_Data:
			to.Output(e.Data.GetStdout())
			to.Errors(e.Data.GetStderr())
		case *session.CommandSessionEvent_End:
			return e.End.GetStatus(), nil
		}
	}
	if err := stream.Err(); err != nil {
		return "", hosted.CauseOf(ctx, err)
	}
	return "", errors.New("the gateway ended the stream before the process")
}

type stream = connect.ServerStreamForClient[session.StartResponse]

// start starts the session and returns its stream, which has received an event. Machines
// run a while before the gateway knows them.
func (p *process) start(ctx context.Context, script string) (*stream, error) {
	for {
		var s *stream
		p.id = uuid.NewString()
		err := p.machine.through(ctx, func(g *gateway) (err error) {
			s, err = g.sessions.Start(ctx, connect.NewRequest(&session.StartRequest{
				Command: &session.CommandSpec{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: proto.Bool(true), SessionUuid: &p.id,
			}))
			if err != nil || s.Receive() {
				return err
			}
			if err = s.Err(); err == nil {
				err = errors.New("the gateway ended the stream before the process")
			}
			_ = s.Close() // it has ended
			return err
		})
		if err == nil || time.Now().After(p.machine.late) {
			return s, err
		}
		if code := connect.CodeOf(err); code != connect.CodeNotFound && code != connect.CodeAborted && !forNow(err) {
			return nil, err
		}
		if serr := hosted.Sleep(ctx, startPause); serr != nil {
			return nil, errors.Join(serr, err)
		}
	}
}

func (p *process) selector() *session.CommandSessionSelector {
	return &session.CommandSessionSelector{Selector: &session.CommandSessionSelector_SessionUuid{SessionUuid: p.id}}
}

// Bounds of the tries of an input. Prime knows the id of an input for a time: its own client
// sends an input again after a minute at most.
const (
	resendTime = time.Minute // since the input was sent
	inputTime  = 30 * time.Second
	inputPause = 500 * time.Millisecond // after the first try; it grows
	mostPause  = 5 * time.Second
)

// Input implements hosted.Process. The id of an input lets it arrive once, however often
// it is sent. While Prime gives no token nothing is sent, so the tries go on until the
// context ends.
func (p *process) Input(ctx context.Context, data []byte) error {
	id := uuid.NewString()
	var first time.Time // that the input was sent
	try := func() error {
		ctx, cancel := context.WithTimeoutCause(ctx, inputTime, fmt.Errorf("no answer came within %s", inputTime))
		defer cancel()
		return p.machine.through(ctx, func(g *gateway) error {
			if first.IsZero() {
				first = time.Now()
			}
			_, err := g.sessions.SendInput(ctx, connect.NewRequest(&session.SendInputRequest{
				Session: p.selector(), Input: &session.CommandInput{Input: &session.CommandInput_Stdin{Stdin: data}}, InputUuid: &id,
			}))
			return err
		})
	}
	for pause := inputPause; ; pause = min(2*pause, mostPause) {
		err := try()
		if err == nil || !forNow(err) || !first.IsZero() && time.Since(first) > resendTime {
			return err
		}
		if serr := hosted.Sleep(ctx, pause); serr != nil {
			return errors.Join(serr, err)
		}
	}
}

// forNow reports whether another try of a call may succeed.
func forNow(err error) bool {
	var no *connect.Error
	if errors.As(err, &no) {
		return no.Code() == connect.CodeUnavailable || no.Code() == connect.CodeDeadlineExceeded
	}
	return hosted.ForNow(err)
}
