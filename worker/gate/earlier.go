package gate

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
)

// earlier keeps the conversations of a session's answers, for requests that
// name one of them instead of sending it. Conversations share their messages,
// so what each costs is what it adds. The oldest go to a file when the memory
// is used up.
type earlier struct {
	mu     sync.Mutex
	order  []string // those in memory, oldest first
	known  map[string]conversation
	bytes  int
	memory int // bound in bytes; 0: maxEarlier

	spool   *os.File // has no name: it is gone with the session
	spooled int64
}

type conversation struct {
	messages []json.RawMessage // that were answered; calls share this list
	answer   json.RawMessage
	added    int // bytes that it has and the one before had not

	at, size int64 // in the spool; 0: in memory
}

func (c *conversation) whole() []json.RawMessage { return append(slices.Clip(c.messages), c.answer) }

const (
	maxEarlier = 64 << 20 // bytes of earlier conversations in memory
	maxSpooled = 1 << 30  // bytes of them on disk
)

func (e *earlier) keep(id string, messages []json.RawMessage, answer json.RawMessage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, there := e.known[id]; there { // the answer is written once more
		return
	}
	if e.known == nil {
		e.known = map[string]conversation{}
	}
	c := conversation{messages: messages, answer: answer, added: len(answer)}
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
	limit := e.memory
	if limit == 0 {
		limit = maxEarlier
	}
	for e.bytes > limit && len(e.order) > 1 {
		oldest := e.order[0]
		old := e.known[oldest]
		e.order = e.order[1:]
		e.bytes -= old.added
		if c, err := e.write(old.whole()); err == nil {
			e.known[oldest] = c
		} else { // it is asked for whole
			delete(e.known, oldest)
		}
	}
}

// write puts a conversation into the spool.
func (e *earlier) write(messages []json.RawMessage) (conversation, error) {
	data, err := json.Marshal(messages)
	if err != nil {
		return conversation{}, err
	}
	if e.spooled+int64(len(data)) > maxSpooled {
		return conversation{}, fmt.Errorf("%d bytes are spooled", e.spooled)
	}
	if e.spool == nil {
		f, err := os.CreateTemp("", "turngate-responses-")
		if err != nil {
			return conversation{}, err
		}
		if err := os.Remove(f.Name()); err != nil {
			f.Close()
			return conversation{}, err
		}
		e.spool = f
	}
	c := conversation{at: e.spooled, size: int64(len(data))}
	if _, err := e.spool.WriteAt(data, c.at); err != nil {
		return conversation{}, err
	}
	e.spooled += c.size
	return c, nil
}

func (e *earlier) find(id string) ([]json.RawMessage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, ok := e.known[id]
	if !ok {
		return nil, fmt.Errorf("%q is not known here, or not kept any more: send the whole input", id)
	}
	if c.size == 0 {
		return c.whole(), nil
	}
	data := make([]byte, c.size)
	if _, err := e.spool.ReadAt(data, c.at); err != nil {
		return nil, fmt.Errorf("%q cannot be read any more: send the whole input", id)
	}
	var messages []json.RawMessage
	if err := json.Unmarshal(data, &messages); err != nil {
		return nil, fmt.Errorf("%q cannot be read any more: send the whole input", id)
	}
	return messages, nil
}

// close gives the spool back.
func (e *earlier) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.spool != nil {
		e.spool.Close()
		e.spool = nil
	}
	e.known, e.order, e.bytes = nil, nil, 0
}
