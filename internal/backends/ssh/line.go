package ssh

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	farline "github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
)

// host is one destination of ssh.
type host struct {
	*far.Host
	name      string
	sandboxes atomic.Int64
	failed    atomic.Int64  // time of the last failure, in nanoseconds since 1970
	dials     chan struct{} // has a place for each connection that may be set up at once
}

// maxDials is below the number of connections that sshd lets log in at once.
const maxDials = 4

// exitSSH is the exit status of ssh for its own failures.
const exitSSH = 255

// line is a running ssh, which can carry a far.Lasting. Its standard input and output are the other end of the
// connection.
type line struct {
	far.Line
	host   *host
	cmd    *exec.Cmd
	says   *far.Head
	exited chan struct{}
}

// flags make ssh ask nothing, forward nothing, and notice within 20 s that the
// other side is gone. A connection of its own for each sandbox ends with it.
func flags(config, name, script string) []string {
	args := []string{"-T", "-a", "-x", "-e", "none", "-S", "none"}
	for _, o := range []string{
		"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ClearAllForwardings=yes", "ControlMaster=no",
		"PermitLocalCommand=no", "RemoteCommand=none", "LogLevel=ERROR",
	} {
		args = append(args, "-o", o)
	}
	if config != "" {
		args = append(args, "-F", config)
	}
	return append(args, "--", name, "/bin/sh -c "+plain.Word(script))
}

// start runs a shell script on the host. The script has no quotes and no exclamation
// marks, so that each login shell passes it on as it is.
func (b *Backend) start(h *host, script string) (*line, error) {
	path, err := exec.LookPath("ssh")
	if err != nil {
		return nil, &sandboxes.UnsupportedError{Field: "sandbox.backend", Value: "ssh", Reason: "the program ssh is missing on the worker's host; install it (Debian: openssh-client)"}
	}
	conn, theirs, err := farline.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	l := &line{Line: far.Line{Host: h.Host, Conn: conn}, host: h, says: &far.Head{}, exited: make(chan struct{})}
	l.Broken = l.broken
	l.cmd = exec.Command(path, flags(b.config, h.name, script)...)
	l.cmd.Stdin, l.cmd.Stdout, l.cmd.Stderr = theirs, theirs, l.says
	l.cmd.WaitDelay = time.Second
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal's signals end the worker's rollouts first
	if err := l.cmd.Start(); err != nil {
		_ = conn.Close() // nothing was sent
		return nil, fmt.Errorf("start ssh: %w", err)
	}
	go func() {
		_ = l.cmd.Wait()
		close(l.exited)
	}()
	return l, nil
}

// Stream implements far.Carrier.
func (l *line) Stream() net.Conn { return l.Conn }

// Why implements far.Carrier.
func (l *line) Why(ctx context.Context) error { return l.broken(ctx) }

// End closes the line and waits until the other side has ended, for endTime at most.
func (l *line) End(ctx context.Context) {
	_ = l.Conn.Close()
	if far.Over(ctx, l.exited, endTime) {
		return
	}
	_ = l.cmd.Process.Kill()
	<-l.exited
}

// broken returns the reason for the end of a line.
func (l *line) broken(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.End(ctx)
	code, says := l.cmd.ProcessState.ExitCode(), l.says.String()
	if code != exitSSH && code >= 0 {
		return fmt.Errorf("the host %s: the command there ended with exit status %d: %s", l.host.name, code, says)
	}
	todo := ""
	switch {
	case strings.Contains(says, "Host key verification failed"), strings.Contains(says, "host key is known"):
		todo = " (look at the key, and accept it with: ssh " + l.host.name + ")"
	case strings.Contains(says, "Permission denied"):
		todo = " (the login must need no password: put a key into the agent or the file of ssh's settings, and into authorized_keys there)"
	}
	if says == "" {
		says = "ssh ended: " + l.cmd.ProcessState.String()
	}
	return fmt.Errorf("the host %s: %s%s", l.host.name, says, todo)
}
