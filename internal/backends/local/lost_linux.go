package local

import (
	"os"
	"syscall"
	"time"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

// lossTime bounds the search for the reason of a loss.
const lossTime = 5 * time.Second

// whyLost returns sandboxes.ErrMemory if the box was killed and processes of the
// sandbox were killed for lack of memory, sandboxes.ErrKilled if the box crashed,
// and sandboxes.ErrLost otherwise.
func (sb *sandbox) whyLost() error {
	limit := time.NewTimer(lossTime)
	defer limit.Stop()
	select {
	case <-sb.exited:
	case <-limit.C:
		return sandboxes.ErrLost
	}
	status, ok := sb.cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = box.Signalled + int(status.Signal())
	}
	if ok && box.Crashed(code) {
		return sandboxes.ErrKilled
	}
	if ok && status.Signaled() && status.Signal() == syscall.SIGKILL && sb.cgroup.oomKills() > sb.ooms {
		return sandboxes.ErrMemory
	}
	return sandboxes.ErrLost
}

// oomKills returns the number of kills for lack of memory in the cgroup.
func (c *cgroup) oomKills() int64 {
	if c == nil || c.oomFile == "" {
		return 0
	}
	f, err := os.Open(c.oomFile)
	if err != nil {
		return 0
	}
	defer f.Close()
	return box.OOMKills(f)
}
