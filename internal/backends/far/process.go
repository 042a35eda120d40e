package far

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/turngate/turngate/internal/plain"
)

// Process is a running Serve on this host.
type Process struct {
	cmd  *exec.Cmd
	says *Head
}

// Start starts Serve of the program helper. Its standard input and output are the
// stream.
func Start(helper string, args []string, stream *os.File) (*Process, error) {
	p := &Process{cmd: exec.Command(helper, append([]string{Command}, args...)...), says: &Head{}}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = stream, stream, p.says
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal's signals end the machine's work first
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start turngate: %w", err)
	}
	return p, nil
}

// Wait waits for the end of the process and returns its exit status and the beginning
// of its errors. Its stream's other end has all its output by then.
func (p *Process) Wait() (status int, says string) {
	_ = p.cmd.Wait() // the status says it
	return p.cmd.ProcessState.ExitCode(), p.says.String()
}

// Kill kills the process. Its sandbox ends with it.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() } // it may have ended

// Head keeps the beginning of a text. It is safe for concurrent use.
type Head struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer. It never fails.
func (h *Head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.text = append(h.text, p[:min(len(p), MaxSays-len(h.text))]...)
	return len(p), nil
}

// String returns the text as one line.
func (h *Head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return plain.Line(strings.TrimSpace(string(h.text)), MaxSays)
}
