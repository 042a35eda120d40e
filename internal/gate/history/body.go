package history

import (
	"bytes"
	"errors"
	"io"
	"slices"
)

// Body is the body of one request, after a Reader has read it.
type Body struct {
	size  int    // in bytes; stays when a later body takes over its parts
	parts *parts // the text of the body, and the items that an earlier body shares
	keep  int    // number of items that are shared with an earlier body
}

// Len returns the size in bytes.
func (b Body) Len() int { return b.size }

// Read reads a body of size bytes. It compares the body with the newest ones
// while it arrives, so that a shared part is in memory once. It returns the
// errors of r.
func (s *Reader) Read(r io.Reader, size int) (Body, error) {
	s.mu.Lock()
	known, array := s.branches, s.decoderOf().Conversation
	s.branches = nil // a request read meanwhile begins a conversation of its own
	s.mu.Unlock()
	using := s.memory.scratch()
	in := incoming{from: r, size: size, chunk: using.chunk[:]}
	base, err := in.follow(known)
	b := s.place(base, &in, array)
	known = slices.DeleteFunc(known, func(p *parts) bool { return p == b.parts })
	if err == nil {
		rest := b.parts.text[in.same:]
		_, err = io.ReadFull(r, rest[copy(rest, in.left):])
		err = unexpected(err)
	}
	s.memory.reuse(using)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
	case b.parts == base: // its items up to the shared ones are still valid
		known = append(known, base)
	default:
		s.memory.recycle(b.parts.text)
	}
	s.branches = append(known, s.branches...)
	s.trim()
	return b, err
}

// place makes room for a body that continues base after the part that the two
// share.
func (s *Reader) place(base *parts, in *incoming, array string) Body {
	b := Body{size: in.size}
	var known []byte
	if base != nil {
		b.keep, known = base.within(in.same), base.text
	}
	switch {
	case b.keep == 0:
		b.parts = &parts{array: array}
	case b.keep+2 < len(base.items): // the body leaves the conversation, which may continue beside it
		b.parts = base.fork(b.keep)
	default:
		b.parts = base
		base.cut(b.keep)
		if in.size <= cap(known) {
			base.text = known[:in.size]
			return b
		}
		defer s.memory.recycle(known)
	}
	b.parts.text = s.memory.body(in.size)
	copy(b.parts.text, known[:in.same])
	return b
}

// incoming is a body while it is read.
type incoming struct {
	from  io.Reader
	size  int
	chunk []byte
	same  int    // bytes that it shares with an earlier body
	left  []byte // the rest of chunk, which was read after them
}

// chunkSize is the number of bytes in one read of a part that is likely to be
// known.
const chunkSize = 32 << 10

// follow reads as long as the body is equal to the beginning of a known body. It
// returns the known body with the longest equal beginning, or nil if none is
// known.
func (in *incoming) follow(known []*parts) (*parts, error) {
	if len(known) == 0 {
		return nil, nil
	}
	base := known[len(known)-1]
	for in.same < in.size && in.same < len(base.text) {
		n, err := in.from.Read(in.chunk[:min(len(in.chunk), in.size-in.same)])
		if n == 0 && err != nil {
			return base, unexpected(err)
		}
		got := in.chunk[:n]
		same := commonPrefix(base.text[in.same:], got)
		for _, p := range slices.Backward(known) {
			if same == n {
				break
			}
			if p != base && len(p.text) > in.same+same && bytes.Equal(p.text[:in.same+same], base.text[:in.same+same]) {
				if more := commonPrefix(p.text[in.same:], got); more > same {
					base, same = p, more
				}
			}
		}
		in.same += same
		if in.left = got[same:]; len(in.left) > 0 {
			break
		}
	}
	return base, nil
}

// unexpected returns the error of a body that ends before its size.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
