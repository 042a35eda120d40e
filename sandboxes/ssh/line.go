package ssh

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
)

// host is one destination of ssh.
type host struct {
	name      string
	sandboxes atomic.Int64
	failed    atomic.Int64  // time of the last failure, in nanoseconds since 1970
	dials     chan struct{} // has a place for each connection that may be set up at once
	travel    chan struct{} // has one place, for the line on which files travel
}

// enter takes a place in a channel of a host; leave gives it back.
func enter(ctx context.Context, places chan struct{}) (leave func(), err error) {
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// maxDials is below the number of connections that sshd lets log in at once.
const maxDials = 4

// exitSSH is the exit status of ssh for its own failures.
const exitSSH = 255

// line is a running ssh. Its standard input and output are one end of conn.
type line struct {
	host   *host
	conn   *net.UnixConn
	cmd    *exec.Cmd
	says   *head
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
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a line to ssh: %w", err)
	}
	theirs, ours := os.NewFile(uintptr(fds[0]), "ssh"), os.NewFile(uintptr(fds[1]), "worker")
	defer theirs.Close()
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("open a line to ssh: %w", err)
	}
	l := &line{host: h, conn: conn.(*net.UnixConn), says: &head{}, exited: make(chan struct{})}
	l.cmd = exec.Command(path, flags(b.config, h.name, script)...)
	l.cmd.Stdin, l.cmd.Stdout, l.cmd.Stderr = theirs, theirs, l.says
	l.cmd.WaitDelay = time.Second
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal's signals end the worker's rollouts first
	if err := l.cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start ssh: %w", err)
	}
	go func() {
		_ = l.cmd.Wait()
		close(l.exited)
	}()
	return l, nil
}

// end closes the line and waits until the other side has ended, for endTime at most.
func (l *line) end(ctx context.Context) {
	_ = l.conn.Close()
	limit := time.NewTimer(endTime)
	defer limit.Stop()
	select {
	case <-l.exited:
		return
	case <-limit.C:
	case <-ctx.Done():
	}
	_ = l.cmd.Process.Kill()
	<-l.exited
}

// ask sends an order and returns the answer.
func (l *line) ask(ctx context.Context, o order) (answer, error) {
	if err := l.send(ctx, o); err != nil {
		return answer{}, err
	}
	return l.answer(ctx)
}

func (l *line) send(ctx context.Context, o order) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("write an order: %w", err)
	}
	if _, err := l.conn.Write(append(data, '\n')); err != nil {
		return l.broken(ctx)
	}
	return nil
}

// answer reads the next answer.
func (l *line) answer(ctx context.Context) (a answer, err error) {
	text, err := l.marked(ctx)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return a, fmt.Errorf("the host %s: read an answer: %w", l.host.name, err)
	}
	switch no := a.Unsupported; {
	case no != nil:
		return a, &sandboxes.UnsupportedError{Field: no.Field, Value: no.Value, Reason: fmt.Sprintf("on the host %s: %s", l.host.name, no.Reason)}
	case a.Error != "":
		return a, fmt.Errorf("the host %s: %s", l.host.name, plain.Line(a.Error, maxSays))
	}
	return a, nil
}

// maxNoise bounds the output of the other side's login shell before an answer.
const maxNoise = 64 << 10

// maxAnswer bounds an answer.
const maxAnswer = 1 << 20

// marked returns the next line that begins with mark, without it. It reads no byte
// beyond that line.
func (l *line) marked(ctx context.Context) (string, error) {
	defer context.AfterFunc(ctx, func() { _ = l.conn.SetReadDeadline(time.Now()) })()
	var text []byte
	one, noise := make([]byte, 1), 0
	for noise < maxNoise && len(text) < maxAnswer {
		if _, err := l.conn.Read(one); err != nil {
			return "", l.broken(ctx)
		}
		if one[0] != '\n' {
			text = append(text, one[0])
			continue
		}
		if rest, ok := bytes.CutPrefix(text, []byte(mark)); ok {
			return string(rest), nil
		}
		noise += len(text) + 1
		text = text[:0]
	}
	return "", fmt.Errorf("the host %s: its login shell writes more than %d bytes to its output before a command runs", l.host.name, maxNoise)
}

// unreachableError means that ssh has no connection to the host, or lost it.
type unreachableError struct {
	host, reason string
}

func (e *unreachableError) Error() string { return fmt.Sprintf("the host %s: %s", e.host, e.reason) }

// broken returns the reason for the end of a line.
func (l *line) broken(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.end(ctx)
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
	return &unreachableError{l.host.name, says + todo}
}

// lost returns the reason for the end of a sandbox: an error that wraps
// sandboxes.ErrLost.
func (l *line) lost() error {
	limit := time.NewTimer(endTime)
	defer limit.Stop()
	select {
	case <-l.exited:
	case <-limit.C:
		return sandboxes.ErrLost
	}
	switch l.cmd.ProcessState.ExitCode() {
	case exitMemory:
		return sandboxes.ErrMemory
	case exitKilled:
		return sandboxes.ErrKilled
	case exitLost:
		return sandboxes.ErrLost
	}
	return fmt.Errorf("%w: %w", sandboxes.ErrLost, l.broken(context.Background()))
}

// maxSays bounds the part of ssh's errors that is kept.
const maxSays = 2 << 10

// head keeps the beginning of a text. It is safe for concurrent use.
type head struct {
	mu   sync.Mutex
	text []byte
}

func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, p[:min(len(p), maxSays-len(h.text))]...)
	return len(p), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return plain.Line(strings.TrimSpace(string(h.text)), maxSays)
}
