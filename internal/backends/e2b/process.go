package e2b

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/turngate/turngate/internal/backends/e2b/envd"
	"github.com/turngate/turngate/internal/backends/e2b/envd/envdconnect"
	"github.com/turngate/turngate/internal/backends/hosted"
)

// maxEvent bounds an event of a process.
const maxEvent = 8 << 20

// process is a process of envd.
type process struct {
	client envdconnect.ProcessClient
	id     *envd.ProcessSelector // valid after Started
}

// Process implements hosted.Remote.
func (m *machine) Process() hosted.Process { return &process{client: m.processes} }

// Run implements hosted.Process.
func (p *process) Run(ctx context.Context, script string, to hosted.Streams) (string, error) {
	stream, err := p.client.Start(ctx, connect.NewRequest(&envd.StartRequest{
		Process: &envd.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: proto.Bool(true),
	}))
	if err != nil {
		return "", hosted.CauseOf(ctx, err)
	}
	defer func() { _ = stream.Close() }() // its error is the stream's, which Err has
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().GetEvent().(type) {
		case *envd.ProcessEvent_Start:
			p.id = &envd.ProcessSelector{Selector: &envd.ProcessSelector_Pid{Pid: e.Start.GetPid()}}
			if err := to.Started(); err != nil {
				return "", err
			}
		case *envd.ProcessEvent_Data:
			to.Output(e.Data.GetStdout())
			to.Errors(e.Data.GetStderr())
		case *envd.ProcessEvent_End:
			return e.End.GetStatus(), nil
		}
	}
	if err := stream.Err(); err != nil {
		return "", hosted.CauseOf(ctx, err)
	}
	return "", errors.New("envd ended the stream before the process")
}

// Input implements hosted.Process. Whether a call that fails has arrived is unknown.
func (p *process) Input(ctx context.Context, data []byte) error {
	_, err := p.client.SendInput(ctx, connect.NewRequest(&envd.SendInputRequest{Process: p.id, Input: &envd.ProcessInput{Input: &envd.ProcessInput_Stdin{Stdin: data}}}))
	return err
}
