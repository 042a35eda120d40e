package gate

import (
	"bytes"
	"errors"
	"io"
	"slices"
)

// Body is one request's, as a Decoder has read it.
type Body struct {
	size  int    // of it, also when its parts have become a later one's
	parts *parts // its text is the body; what was known of it is cut to
	keep  int    // items, which it shares with an earlier one
}

// Len is its size in bytes.
func (b Body) Len() int { return b.size }

// Read implements Decoder. The body is compared with the newest ones while it
// comes, so that what it shares with one of them is in memory once.
func (s *splitter) Read(r io.Reader, size int) (Body, error) {
	s.mu.Lock()
	known := s.branches
	s.branches = nil // what others send meanwhile is read as a conversation of its own
	s.mu.Unlock()
	using := s.memory.scratch()
	in := incoming{from: r, size: size, chunk: using.chunk[:]}
	base, err := in.follow(known)
	b := s.place(base, &in)
	known = slices.DeleteFunc(known, func(p *parts) bool { return p == b.parts })
	if err == nil {
		rest := b.parts.text[in.same:]
		_, err = io.ReadFull(r, rest[copy(rest, in.left):])
		err = unexpected(err)
	}
	s.memory.scratches.Put(using)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
	case b.parts == base: // what is known of it is still there
		known = append(known, base)
	default:
		s.memory.recycle(b.parts.text)
	}
	s.branches = append(known, s.branches...)
	s.trim()
	return b, err
}

// place makes room for a body that goes on from base, behind what the two
// share.
func (s *splitter) place(base *parts, in *incoming) Body {
	b := Body{size: in.size}
	var known []byte
	if base != nil {
		b.keep, known = base.within(in.same), base.text
	}
	switch {
	case b.keep == 0:
		b.parts = &parts{array: s.array}
	case b.keep+2 < len(base.items): // it leaves the conversation, which may go on beside it
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

// incoming is a body that is being read.
type incoming struct {
	from  io.Reader
	size  int
	chunk []byte
	same  int    // bytes that it shares with an earlier body
	left  []byte // of chunk: what was read behind them
}

// chunkSize is how much is read at once of what is likely to be known.
const chunkSize = 32 << 10

// follow reads for as long as a body is equal to the beginning of one of those
// that are known, and returns that one; nil: there is none.
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

// unexpected is the error of a body that ends before its size.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
