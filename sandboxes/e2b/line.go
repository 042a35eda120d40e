package e2b

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/e2b/envd"
	"github.com/turngate/turngate/sandboxes/far"
)

// Bounds of a stream of envd.
const (
	pingEvery = 30 * time.Second // between two events of a process that writes nothing
	silence   = 4 * time.Minute  // after it the stream counts as broken
	maxEvent  = 8 << 20
	maxInput  = 256 << 10
	sendTime  = 2 * time.Minute // for one input
)

// folder is the cache folder on the other side, relative to the home of its user.
const folder = ".cache/turngate/e2b"

// saidMissing is the first line of the other side after its mark if turngate is not
// there. The system and the machine follow.
const saidMissing = "missing"

// program returns the path of the program with this digest, relative to the home.
func program(digest string) string { return folder + "/turngate-" + digest }

// startScript starts the program with this digest, which may be a part of the template,
// or says that it is missing.
func startScript(digest string) string {
	return `umask 077; d="$HOME/` + folder + `"; mkdir -p "$d" || exit 1; for f in "$HOME/` + program(digest) + `" /usr/local/bin/turngate; do ` +
		`[ -s "$f" ] || continue; case $(sha256sum <"$f") in ` + digest + `*) [ -x "$f" ] || chmod 755 "$f" || exit 1; exec "$f" ` + far.Command + ` "$d";; esac; done; ` +
		`echo "` + far.Mark + saidMissing + ` $(uname -s) $(uname -m)"`
}

// dial returns a line to far.Serve in the machine. It brings the program if the machine
// does not have it.
func (b *Backend) dial(ctx context.Context, m *machine, digest string, log func(string)) (*line, error) {
	l, missing, err := m.tryDial(ctx, digest)
	if err != nil || missing == "" {
		return l, err
	}
	if err := fits(missing); err != nil {
		return nil, err
	}
	log("turngate travels to " + m.Called)
	if err := m.put(ctx, b.helper, program(digest)); err != nil {
		return nil, err
	}
	if l, missing, err = m.tryDial(ctx, digest); err == nil && missing != "" {
		err = fmt.Errorf("%s: turngate has arrived there with another digest", m.Called)
	}
	return l, err
}

// tryDial returns a line to far.Serve, or the system and machine if turngate is missing.
func (m *machine) tryDial(ctx context.Context, digest string) (_ *line, missing string, err error) {
	l, err := m.start(ctx, startScript(digest))
	if err != nil {
		return nil, "", err
	}
	said, err := l.Marked(ctx)
	if err == nil && said == far.Ready {
		return l, "", nil
	}
	l.end()
	if err != nil {
		return nil, "", err
	}
	missing, ok := strings.CutPrefix(said, saidMissing+" ")
	if !ok {
		return nil, "", fmt.Errorf("%s answers %q", m.Called, plain.Line(said, far.MaxSays))
	}
	return nil, missing, nil
}

// fits returns an error if the program does not run on the system and machine, in the
// words of uname.
func fits(there string) error {
	kind := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	if here := "Linux " + kind; there != here {
		return &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: "e2b", Reason: fmt.Sprintf("the template makes a %s, this turngate is for %s", plain.Line(there, far.MaxSays), here)}
	}
	return nil
}

// line is a process of envd. Its standard input and output are the other end of the
// connection.
type line struct {
	far.Line
	machine *machine
	says    *far.Head
	cancel  context.CancelCauseFunc
	over    chan struct{}

	exit   *envd.ProcessEvent_EndEvent // valid after over; nil: the stream broke
	broke  error                       // valid after over
	theirs net.Conn
}

// start starts a shell script as envdUser.
func (m *machine) start(ctx context.Context, script string) (*line, error) {
	conn, file, err := far.Pair()
	if err != nil {
		return nil, err
	}
	theirs, err := net.FileConn(file)
	file.Close()
	if err != nil {
		_ = conn.Close() // nothing was sent
		return nil, fmt.Errorf("open a line: %w", err)
	}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx)) // the sandbox outlives its creation
	l := &line{Line: far.Line{Host: m.Host, Conn: conn}, machine: m, says: &far.Head{}, cancel: cancel, over: make(chan struct{}), theirs: theirs}
	l.Broken = l.broken
	go l.run(life, script)
	return l, nil
}

// run carries the bytes of the process until it or the stream ends.
func (l *line) run(ctx context.Context, script string) {
	defer close(l.over)
	defer l.cancel(nil)
	defer l.theirs.Close()
	stopped := make(chan struct{})
	defer func() { <-stopped }()
	go func() { // ends the stream with the machine
		defer close(stopped)
		select {
		case <-l.machine.over:
			l.cancel(l.machine.why)
		case <-ctx.Done():
		}
	}()
	defer l.cancel(nil)
	l.exit, l.broke = l.receive(ctx, script)
}

// receive starts the process and writes its output to the connection.
func (l *line) receive(ctx context.Context, script string) (*envd.ProcessEvent_EndEvent, error) {
	quiet := time.AfterFunc(silence, func() { l.cancel(fmt.Errorf("envd was silent for %s", silence)) })
	defer quiet.Stop()
	stream, err := l.machine.processes.Start(ctx, connect.NewRequest(&envd.StartRequest{
		Process: &envd.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", script}}, Stdin: proto.Bool(true),
	}))
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	defer func() { _ = stream.Close() }() // its error is the stream's, which Err has
	pumped := make(chan struct{})
	started := false
	defer func() {
		_ = l.theirs.Close() // it ends send
		l.cancel(nil)
		if started {
			<-pumped
		}
	}()
	for stream.Receive() {
		quiet.Reset(silence)
		switch e := stream.Msg().GetEvent().GetEvent().(type) {
		case *envd.ProcessEvent_Start:
			if started {
				return nil, errors.New("envd starts the process twice")
			}
			started = true
			go func() {
				defer close(pumped)
				l.send(ctx, &envd.ProcessSelector{Selector: &envd.ProcessSelector_Pid{Pid: e.Start.GetPid()}})
			}()
		case *envd.ProcessEvent_Data:
			if out := e.Data.GetStdout(); len(out) > 0 {
				_, _ = l.theirs.Write(out) // the worker may have closed its end; the exit status still counts
			}
			_, _ = l.says.Write(e.Data.GetStderr())
		case *envd.ProcessEvent_End:
			return e.End, nil
		}
	}
	if err := stream.Err(); err != nil {
		return nil, causeOf(ctx, err)
	}
	return nil, errors.New("envd ended the stream before the process")
}

// causeOf returns the cause of the context's end, or err if it has not ended.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// gather is the time for which send waits for more bytes: a message of the box is written
// in two parts, and each call is a way there and back.
const gather = time.Millisecond

// send carries bytes from the connection to the process. One call is under way at a
// time, so the bytes keep their order. Whether a call that fails has arrived is
// unknown: it ends the line.
func (l *line) send(ctx context.Context, to *envd.ProcessSelector) {
	buf := make([]byte, maxInput)
	for {
		_ = l.theirs.SetReadDeadline(time.Time{})
		n, err := l.theirs.Read(buf)
		for err == nil && n < len(buf) {
			_ = l.theirs.SetReadDeadline(time.Now().Add(gather))
			var more int
			more, err = l.theirs.Read(buf[n:])
			n += more
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
		call, done := context.WithTimeoutCause(ctx, sendTime, fmt.Errorf("envd takes no input for %s", sendTime))
		if n > 0 {
			_, serr := l.machine.processes.SendInput(call, connect.NewRequest(&envd.SendInputRequest{Process: to, Input: &envd.ProcessInput{Input: &envd.ProcessInput_Stdin{Stdin: buf[:n]}}}))
			if serr != nil {
				done()
				l.cancel(fmt.Errorf("send to envd: %w", serr))
				return
			}
		}
		if err != nil { // the worker has closed its end
			_, _ = l.machine.processes.CloseStdin(call, connect.NewRequest(&envd.CloseStdinRequest{Process: to})) // the removal of the machine ends it too
			done()
			return
		}
		done()
	}
}

// end breaks the line.
func (l *line) end() {
	_ = l.Conn.Close()
	l.cancel(errors.New("it was closed"))
	<-l.over
}

// endTime bounds the wait for the end of a process whose output has ended.
const endTime = 20 * time.Second

// broken returns the reason for the end of a line.
func (l *line) broken(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return l.reason(ctx)
}

func (l *line) reason(ctx context.Context) error {
	limit := time.NewTimer(endTime)
	defer limit.Stop()
	select {
	case <-l.over:
	case <-limit.C:
		return fmt.Errorf("%s: the line ended", l.Host.Called)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.exit != nil {
		return fmt.Errorf("%s: the command there ended with %s: %s", l.Host.Called, plain.Line(l.exit.GetStatus(), 200), l.says)
	}
	why := l.broke
	if err := l.machine.control.there(ctx, l.machine.id); isGone(err) {
		why = errors.New("E2B has ended it: its time there was over, or somebody removed it")
	}
	return fmt.Errorf("%s: the stream broke: %s", l.Host.Called, plain.Line(why.Error(), far.MaxSays))
}

// lost returns the reason for the end of a sandbox: an error that wraps
// sandboxes.ErrLost.
func (l *line) lost() error {
	reason := l.reason(context.Background())
	select {
	case <-l.over:
		if l.exit != nil {
			if err, ok := far.Lost(int(l.exit.GetExitCode())); ok {
				return err
			}
		}
	default:
	}
	return fmt.Errorf("%w: %s", sandboxes.ErrLost, reason.Error())
}
