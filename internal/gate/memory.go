package gate

import (
	"cmp"

	"github.com/turngate/turngate/internal/gate/history"
)

// Memory is shared by the sessions of a worker and bounds the memory that
// agents can make it use. One bound is for conversations, see history.Memory;
// the other is for requests, from their first byte until their answers are
// delivered. Above the second bound the gate refuses requests.
type Memory struct {
	conversations *history.Memory
	requests      history.Budget
	timers        *clientTimers
}

// defaultRequests is the default bound for the requests of a worker, in bytes.
const defaultRequests = 512 << 20

// NewMemory returns a Memory with bounds in bytes; requests 0 means 512 MiB.
func NewMemory(conversations, requests int64) *Memory {
	m := &Memory{conversations: history.NewMemory(conversations), timers: newClientTimers(Timing{}.withDefaults())}
	m.requests.Limit = cmp.Or(requests, defaultRequests)
	return m
}

// Used returns the bytes in use for conversations and for requests.
func (m *Memory) Used() (conversations, requests int64) {
	return m.conversations.Used(), m.requests.Used()
}
