package chaos_test

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/schema"
)

// census counts the agents of a run. Each agent keeps a connection open, which the
// kernel closes when its process dies, so the run sees beginnings and ends with
// its own clock.
type census struct {
	listener net.Listener

	mu      sync.Mutex
	agents  []*agentLife
	changed chan struct{} // closed and replaced at each beginning
	done    sync.WaitGroup
}

// agentLife is one execution of a rollout.
type agentLife struct {
	rollout    schema.ID
	box        string
	pid        int // of its worker, from the kernel
	begin, end time.Time
}

func newCensus(t testing.TB, name string) *census {
	t.Helper()
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	c := &census{listener: l, changed: make(chan struct{})}
	c.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.done.Go(func() { c.follow(conn) })
		}
	})
	return c
}

// close ends the census. Every agent must have ended.
func (c *census) close() {
	c.listener.Close()
	c.done.Wait()
}

func (c *census) follow(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewReader(conn)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return // its process died in between
	}
	var h history.Hello
	if json.Unmarshal(line, &h) != nil {
		return
	}
	a := &agentLife{rollout: h.Rollout, box: h.Box, pid: peer(conn), begin: time.Now()}
	c.mu.Lock()
	c.agents = append(c.agents, a)
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	_, _ = lines.ReadByte() // until its end
	c.mu.Lock()
	a.end = time.Now()
	c.mu.Unlock()
}

// peer returns the process at the other end of a unix socket.
func peer(conn net.Conn) int {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		pid = peerOf(int(fd))
	})
	return pid
}

// all returns the agents that have begun.
func (c *census) all() []agentLife {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]agentLife, len(c.agents))
	for i, a := range c.agents {
		out[i] = *a
	}
	return out
}

// begun returns the number of executions, and a channel that is closed when there
// are more.
func (c *census) begun() (int, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.agents), c.changed
}

// awaitAgents waits until so many agents have begun in all.
func awaitAgents(t testing.TB, b *bench, n int, limit time.Duration) {
	t.Helper()
	over := time.After(limit)
	for {
		got, more := b.census.begun()
		if got >= n {
			return
		}
		select {
		case <-more:
		case <-over:
			t.Fatalf("%d of %d agents have begun", got, n)
		}
	}
}

// boxes lists the folders of sandboxes in a worker's temporary folder.
func (p *process) boxes() ([]string, error) {
	return filepath.Glob(filepath.Join(p.tmp, "turngate-dummy-*"))
}

// clearTmp removes the folders that a dead worker has left, as a host does that
// starts again.
func (p *process) clearTmp() error {
	if err := os.RemoveAll(p.tmp); err != nil {
		return err
	}
	return os.MkdirAll(p.tmp, 0o700)
}
