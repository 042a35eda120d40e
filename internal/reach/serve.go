package reach

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"
)

// lineTime bounds the wait for the first line of a connection.
const lineTime = 10 * time.Second

// acceptAgain is the wait after a connection that could not be accepted.
const acceptAgain = 100 * time.Millisecond

func (h *Host) serve() {
	for {
		conn, err := h.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // this process has no descriptor left, for now
			select {
			case <-h.ending:
				return
			case <-time.After(acceptAgain):
				continue
			}
		}
		h.mu.Lock()
		h.conns[conn] = true
		h.mu.Unlock()
		h.serving.Go(func() {
			defer func() {
				h.mu.Lock()
				delete(h.conns, conn)
				h.mu.Unlock()
				conn.Close()
			}()
			select {
			case <-h.ending: // Close may not have seen this connection
				return
			default:
			}
			h.operate(conn)
		})
	}
}

// operate serves one connection.
func (h *Host) operate(conn net.Conn) {
	var q request
	_ = conn.SetDeadline(time.Now().Add(lineTime))
	if err := readLine(conn, &q); err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if q.Op == opList {
		_ = writeLine(conn, answer{Sandboxes: h.list()})
		return
	}
	h.mu.Lock()
	k := h.all[q.ID]
	h.mu.Unlock()
	if k == nil {
		_ = writeLine(conn, answer{Error: fmt.Sprintf("the sandbox %s has ended", q.ID)})
		return
	}
	switch q.Op {
	case opOpen:
		k.open(conn)
	case opRemove:
		k.remove(conn)
	default:
		_ = writeLine(conn, answer{Error: fmt.Sprintf("the operation %q is not known", q.Op)})
	}
}

func (h *Host) list() []Sandbox {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.all))
	out := make([]Sandbox, len(all))
	for i, k := range all {
		out[i] = k.info
	}
	h.mu.Unlock()
	for i, k := range all {
		out[i].Env = k.env()
	}
	slices.SortFunc(out, order)
	return out
}

// open connects a command with the box.
func (k *Held) open(conn net.Conn) {
	stream, err := k.box.Stream()
	if err != nil {
		_ = writeLine(conn, answer{Error: err.Error()})
		return
	}
	if err := writeLine(conn, answer{}); err != nil {
		stream.Close()
		return
	}
	splice(conn, stream)
}

// remove ends a kept sandbox. The connection of the last one stays open until the host
// has ended, so that the command can wait for that.
func (k *Held) remove(conn net.Conn) {
	h := k.host
	h.mu.Lock()
	kept := k.info.State == Kept
	if kept {
		h.conns[conn] = false // an answer is due, although the host may end now
	}
	h.mu.Unlock()
	if !kept {
		_ = writeLine(conn, answer{Error: fmt.Sprintf("the sandbox %s belongs to a rollout that runs: end its command instead", k.info.ID)})
		return
	}
	k.end()
	<-k.gone
	_ = conn.SetDeadline(time.Now().Add(lineTime))
	_ = writeLine(conn, answer{})
	h.mu.Lock()
	last := h.waits && len(h.kept()) == 0
	h.mu.Unlock()
	if last {
		<-h.ending
	}
}
