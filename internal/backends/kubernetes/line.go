package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/klog/v2"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/plain"
)

// pod is a pod of a sandbox.
type pod struct {
	*far.Host
	cluster *cluster
	name    string
}

// saidMissing is the first line of the other side after its mark if the image has no
// turngate. The system and the machine follow, and the program is read from the input.
const saidMissing = "missing"

// program is turngate in the container of the helper.
const program = folder + "/turngate"

// startScript starts far.Serve with the program of this digest and size, which the image
// may have.
func startScript(digest string, size int64) string {
	return fmt.Sprintf(`f=/usr/local/bin/turngate; same() { case $(sha256sum <"$1") in %s*) true;; *) false;; esac; }; `+
		`if [ -s $f ] && same $f; then cp $f %s; else echo "%s%s $(uname -s) $(uname -m)"; head -c %d >%s; fi && `+
		`if same %s; then chmod 755 %s && exec %s %s %s; fi; echo "turngate has arrived with another digest" >&2; exit 1`,
		digest, program, far.Mark, saidMissing, size, program, program, program, program, far.Command, folder)
}

// dial returns a line to far.Serve in the container of the helper. It brings the program
// if the image does not have it.
func (m *pod) dial(ctx context.Context, helper, digest string, log func(string)) (*line, error) {
	info, err := os.Stat(helper)
	if err != nil {
		return nil, fmt.Errorf("read turngate's own program: %w", err)
	}
	l, err := m.start(ctx, startScript(digest, info.Size()))
	if err != nil {
		return nil, err
	}
	if err := l.greet(ctx, helper, log); err != nil {
		l.End(ctx)
		return nil, err
	}
	return l, nil
}

// attachTime bounds the way to a command in the pod.
const attachTime = 20 * time.Second

// attach returns a connection to the Serve that keeps the line of this name.
func (m *pod) attach(ctx context.Context, name string) (far.Carrier, error) {
	limited, cancel := context.WithTimeoutCause(ctx, attachTime, fmt.Errorf("%s: no answer within %s", m.Called, attachTime))
	defer cancel()
	l, err := m.start(ctx, strings.Join([]string{"exec", program, far.Command, far.AttachFlag, folder, name}, " "))
	if err != nil {
		return nil, err
	}
	said, err := l.Marked(limited)
	if err == nil {
		err = far.Attached(said)
	}
	if err == nil {
		return l, nil
	}
	l.End(limited)
	if p, unread := m.cluster.pod(ctx, m.name); isGone(unread) || unread == nil && ended(p) != nil {
		err = far.ErrGone
	}
	return nil, err
}

func (l *line) greet(ctx context.Context, helper string, log func(string)) error {
	said, err := l.Marked(ctx)
	if err != nil {
		return err
	}
	if there, ok := strings.CutPrefix(said, saidMissing+" "); ok {
		if err := far.Fits(there, "kubernetes", "the node is", "; choose nodes with --kubernetes-node-selector"); err != nil {
			return err
		}
		log("turngate travels to " + l.Host.Called)
		if err := l.bring(ctx, helper); err != nil {
			return err
		}
		if said, err = l.Marked(ctx); err != nil {
			return err
		}
	}
	if said != far.Ready {
		return fmt.Errorf("%s answers %q", l.Host.Called, plain.Line(said, far.MaxSays))
	}
	return nil
}

// bring sends the program.
func (l *line) bring(ctx context.Context, helper string) error {
	defer context.AfterFunc(ctx, func() { _ = l.Conn.SetWriteDeadline(time.Now()) })()
	f, err := os.Open(helper)
	if err != nil {
		return fmt.Errorf("read turngate's own program: %w", err)
	}
	defer f.Close()
	if _, err := io.Copy(l.Conn, f); err != nil {
		return l.broken(ctx)
	}
	return nil
}

// line is a command in a container, which can carry a far.Lasting. Its standard input and
// output are the other end of the connection.
type line struct {
	far.Line
	says   *far.Head
	cancel context.CancelCauseFunc
	over   chan struct{}
	broke  error // valid after over; nil: the command ended with status 0
	theirs net.Conn
}

// start starts a shell script in the container of the helper.
func (m *pod) start(ctx context.Context, script string) (*line, error) {
	stream, err := remotecommand.NewWebSocketExecutor(m.cluster.config, "GET", m.cluster.execURL(m.name, helperContainer, script).String())
	if err != nil {
		return nil, refused("start a command in "+m.Called, err)
	}
	conn, theirs, err := far.Conns()
	if err != nil {
		return nil, err
	}
	life, cancel := context.WithCancelCause(klog.NewContext(context.WithoutCancel(ctx), logr.Discard())) // the sandbox outlives its creation
	l := &line{Line: far.Line{Host: m.Host, Conn: conn}, says: &far.Head{}, cancel: cancel, over: make(chan struct{}), theirs: theirs}
	l.Broken = l.broken
	go func() {
		defer close(l.over)
		defer cancel(nil)
		defer func() { _ = theirs.Close() }() // it ends the copies of the stream
		l.broke = stream.StreamWithContext(life, remotecommand.StreamOptions{Stdin: theirs, Stdout: theirs, Stderr: l.says})
		if life.Err() != nil {
			l.broke = context.Cause(life)
		}
	}()
	return l, nil
}

// Stream implements far.Carrier.
func (l *line) Stream() net.Conn { return l.Conn }

// Why implements far.Carrier.
func (l *line) Why(ctx context.Context) error { return l.broken(ctx) }

// End implements far.Carrier. The client of Kubernetes does not give up a handshake, so this
// waits for endTime at most.
func (l *line) End(ctx context.Context) {
	_ = l.Conn.Close()
	l.cancel(errClosed)
	far.Over(ctx, l.over, endTime)
}

// endTime bounds the wait for the end of a stream after the end of its output.
const endTime = 20 * time.Second

// broken returns the reason for the end of a line, or the context's cause.
func (l *line) broken(ctx context.Context) error {
	limit := time.NewTimer(endTime)
	defer limit.Stop()
	select {
	case <-l.over:
	case <-limit.C:
		return fmt.Errorf("%s: the stream ended", l.Host.Called)
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var status exec.CodeExitError
	switch {
	case l.broke == nil:
		return fmt.Errorf("%s: the command there ended: %s", l.Host.Called, l.says)
	case errors.As(l.broke, &status):
		return fmt.Errorf("%s: the command there ended with status %d: %s", l.Host.Called, status.Code, l.says)
	}
	return fmt.Errorf("%s: the stream broke: %s", l.Host.Called, plain.Line(l.broke.Error(), far.MaxSays))
}
