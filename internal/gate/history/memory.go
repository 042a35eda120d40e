package history

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// Memory is shared by the sessions of a worker. It bounds the conversations that
// sessions keep to compare later calls with them. Above the bound sessions keep
// hashes only: calls still travel as their new part, but each call is read and
// hashed whole.
type Memory struct {
	conversations Budget

	seed      maphash.Seed // seed of the hashes that tell bodies apart
	bodies    sync.Pool    // of *[]byte
	scratches sync.Pool    // of *scratch
}

// Budget bounds bytes. It is safe for concurrent use.
type Budget struct {
	Limit int64
	used  atomic.Int64
}

// Reserve takes n bytes, or returns false if they are beyond the limit.
func (b *Budget) Reserve(n int64) bool {
	if b.used.Add(n) <= b.Limit {
		return true
	}
	b.used.Add(-n)
	return false
}

// Release gives n bytes back.
func (b *Budget) Release(n int64) { b.used.Add(-n) }

// Used returns the bytes in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// NewMemory returns a Memory with a bound for conversations in bytes.
func NewMemory(conversations int64) *Memory {
	return &Memory{conversations: Budget{Limit: conversations}, seed: maphash.MakeSeed()}
}

// Used returns the bytes in use for conversations.
func (m *Memory) Used() int64 { return m.conversations.Used() }

// maxPooled is the largest buffer that goes back to a pool, in bytes: no budget
// counts the memory of unused buffers.
const maxPooled = 1 << 20

// body returns a buffer of n bytes with undefined content. A session may keep
// the buffer, so its capacity is not much larger than n.
func (m *Memory) body(n int) []byte {
	if b, _ := m.bodies.Get().(*[]byte); b != nil && cap(*b) >= n {
		if cap(*b) <= 2*n+(64<<10) {
			return (*b)[:n]
		}
		m.bodies.Put(b)
	}
	return make([]byte, n, n+n/4) // the next one is a little longer
}

// recycle takes back a buffer that is no longer in use.
func (m *Memory) recycle(b []byte) {
	if cap(b) > 0 && cap(b) <= maxPooled {
		m.bodies.Put(&b)
	}
}

func (m *Memory) scratch() *scratch {
	if s, _ := m.scratches.Get().(*scratch); s != nil {
		return s
	}
	return &scratch{}
}

func (m *Memory) reuse(s *scratch) {
	if s.large = s.large || cap(s.rest) > maxPooled; !s.large {
		m.scratches.Put(s)
	}
}

// scratch has the buffers for reading, parsing and hashing.
type scratch struct {
	chunk   [chunkSize]byte
	decoder jsontext.Decoder
	rest    []byte
	large   bool // too large to go back to the pool
	hasher  schema.Hasher
}
