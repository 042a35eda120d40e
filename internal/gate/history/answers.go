package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
)

// answers keeps the conversations of a session's answers, for requests that
// name an answer instead of sending its conversation. Conversations share their
// messages, so each costs only its new ones. When the memory of the session or
// of the worker is used up, the oldest conversations move to a file.
type answers struct {
	worker *Budget // the worker's bound for conversations
	own    func(json.RawMessage) json.RawMessage

	mu     sync.Mutex
	order  []string // ids of conversations in memory, oldest first
	known  map[string]conversation
	bytes  int64
	memory int64 // bound in bytes; 0: maxAnswers

	spool   *os.File // a deleted file; close frees its space
	spooled int64
}

type conversation struct {
	messages []json.RawMessage // the request; calls share this list
	answer   json.RawMessage
	added    int64 // bytes that the conversation before in memory does not have

	at, size int64 // in the spool; 0: in memory
}

func (c *conversation) whole() []json.RawMessage { return append(slices.Clip(c.messages), c.answer) }

// listEntry is the memory of a message in a list, in addition to the message, in
// bytes.
const listEntry = 24

const (
	maxAnswers = 64 << 20 // bytes of earlier conversations in memory
	maxSpooled = 1 << 30  // bytes of them on disk
)

// Keep keeps the conversation of an answer, which later requests name by id.
func (a *answers) Keep(id string, messages []json.RawMessage, answer json.RawMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, there := a.known[id]; there { // the answer is encoded again
		return
	}
	if a.known == nil {
		a.known = map[string]conversation{}
	}
	c := conversation{messages: messages, answer: a.own(answer)}
	limit := cmp.Or(a.memory, maxAnswers)
	for {
		var before []json.RawMessage
		if n := len(a.order); n > 0 {
			before = a.known[a.order[n-1]].messages
		}
		c.added = c.beyond(before)
		if a.bytes+c.added <= limit && a.worker.Reserve(c.added) {
			break
		}
		if len(a.order) == 0 {
			if c, err := a.write(c.whole()); err == nil { // otherwise find asks for the whole input
				a.known[id] = c
			}
			return
		}
		a.spill()
	}
	a.known[id] = c
	a.order = append(a.order, id)
	a.bytes += c.added
}

// beyond returns the bytes of a conversation that other does not share.
func (c *conversation) beyond(other []json.RawMessage) int64 {
	n := int64(len(c.answer) + perMessage)
	if len(other) == 0 || len(c.messages) == 0 || &other[0] != &c.messages[0] { // its list is a copy
		n += int64(len(c.messages)) * listEntry
	}
	for _, m := range c.messages[sharedStart(other, c.messages):] {
		n += int64(len(m) + perMessage)
	}
	return n
}

// spill moves the oldest conversation in memory to the file. The next
// conversation is charged for the messages that the two shared.
func (a *answers) spill() {
	oldest := a.order[0]
	old := a.known[oldest]
	a.order = a.order[1:]
	freed := old.added
	if len(a.order) > 0 {
		next := a.known[a.order[0]]
		was := next.added
		next.added = next.beyond(nil)
		freed -= next.added - was
		a.known[a.order[0]] = next
	}
	a.bytes -= freed
	a.worker.Release(freed)
	if c, err := a.write(old.whole()); err == nil {
		a.known[oldest] = c
	} else { // find asks for the whole input
		delete(a.known, oldest)
	}
}

// write appends a conversation to the spool.
func (a *answers) write(messages []json.RawMessage) (conversation, error) {
	data, err := json.Marshal(messages)
	if err != nil {
		return conversation{}, err
	}
	if a.spooled+int64(len(data)) > maxSpooled {
		return conversation{}, fmt.Errorf("%d bytes are spooled", a.spooled)
	}
	if a.spool == nil {
		f, err := os.CreateTemp("", "turngate-responses-")
		if err != nil {
			return conversation{}, err
		}
		if err := os.Remove(f.Name()); err != nil {
			f.Close()
			return conversation{}, err
		}
		a.spool = f
	}
	c := conversation{at: a.spooled, size: int64(len(data))}
	if _, err := a.spool.WriteAt(data, c.at); err != nil {
		return conversation{}, err
	}
	a.spooled += c.size
	return c, nil
}

func (a *answers) find(id string) ([]json.RawMessage, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.known[id]
	if !ok {
		return nil, fmt.Errorf("%.80q is not known here, or not kept any more: send the whole input", id)
	}
	if c.size == 0 {
		return c.whole(), nil
	}
	data := make([]byte, c.size)
	if _, err := a.spool.ReadAt(data, c.at); err != nil {
		return nil, fmt.Errorf("%.80q cannot be read any more: send the whole input", id)
	}
	var messages []json.RawMessage
	if err := json.Unmarshal(data, &messages); err != nil {
		return nil, fmt.Errorf("%.80q cannot be read any more: send the whole input", id)
	}
	return messages, nil
}

func sizeOf(messages []json.RawMessage) (n int) {
	for _, m := range messages {
		n += len(m)
	}
	return n
}

// close releases the memory and the spool.
func (a *answers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.spool != nil {
		a.spool.Close()
		a.spool = nil
	}
	a.worker.Release(a.bytes)
	a.known, a.order, a.bytes = nil, nil, 0
}
