package gate

import (
	"encoding/json"
	"fmt"
	"sync"
)

// earlier keeps the conversations of a session's answers, for requests that
// name one of them instead of sending it. Conversations share their messages,
// so what each costs is what it adds.
type earlier struct {
	mu    sync.Mutex
	order []string // oldest first
	known map[string]conversation
	bytes int
}

type conversation struct {
	messages []json.RawMessage
	added    int // bytes that it has and the one before had not
}

// maxEarlier bounds what is kept of earlier conversations, in bytes.
const maxEarlier = 64 << 20

func (e *earlier) keep(id string, messages []json.RawMessage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, there := e.known[id]; there { // the answer is written once more
		return
	}
	if e.known == nil {
		e.known = map[string]conversation{}
	}
	c := conversation{messages: messages}
	shared := 0
	if n := len(e.order); n > 0 {
		shared = sharedStart(e.known[e.order[n-1]].messages, messages)
	}
	for _, m := range messages[shared:] {
		c.added += len(m)
	}
	e.known[id] = c
	e.order = append(e.order, id)
	e.bytes += c.added
	for e.bytes > maxEarlier && len(e.order) > 1 {
		e.bytes -= e.known[e.order[0]].added
		delete(e.known, e.order[0])
		e.order = e.order[1:]
	}
}

// sharedStart counts the messages that are the very same bytes in memory.
func sharedStart(a, b []json.RawMessage) int {
	n := 0
	for n < len(a) && n < len(b) && len(a[n]) == len(b[n]) && (len(a[n]) == 0 || &a[n][0] == &b[n][0]) {
		n++
	}
	return n
}

func (e *earlier) find(id string) ([]json.RawMessage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.known[id]
	if !ok {
		return nil, fmt.Errorf("%q is not known here, or not kept any more: send the whole input", id)
	}
	return c.messages, nil
}
