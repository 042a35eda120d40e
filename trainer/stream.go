package trainer

import (
	"bytes"
	"time"

	"github.com/turngate/turngate/schema"
)

// Stream sends an answer while it is generated. A worker that loses a piece
// asks for it again. Pieces of text within mergeWithin of each other travel in
// one message, so that a fast upstream does not need a message per token.
type Stream struct{ p *Pending }

const (
	mergeWithin = 2 * time.Millisecond
	mergeMost   = 32 << 10 // bytes of text in one message
)

// Stream returns the stream that answers the call in pieces.
func (p *Pending) Stream() *Stream { return &Stream{p} }

// Delta sends one piece. It returns a *schema.InvalidError for a piece that
// agents cannot read, and ErrOver if the call needs no answer; nothing is sent
// then.
func (st *Stream) Delta(d *schema.Delta) error {
	d.V = schema.Version
	if err := schema.Validate(d); err != nil {
		return err
	}
	if err := schema.CheckPiece(d.Delta); err != nil {
		return err
	}
	s := st.p.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted() {
		return ErrOver
	}
	if s.buffered.merge(d) {
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	since := time.Since(s.sent)
	if since >= mergeWithin || !s.buffered.begin(d) {
		return s.sendDelta(d)
	}
	if s.later == nil {
		s.later = time.AfterFunc(mergeWithin-since, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.wanted() {
				_ = s.flush() // buffered pieces are valid
			}
		})
	} else {
		s.later.Reset(mergeWithin - since)
	}
	return nil
}

// Final ends the stream with the whole reply, which has all deltas again.
func (st *Stream) Final(r *schema.Reply) error { return st.p.Reply(r) }

// deltaBuffer has the buffered pieces of one text, which travel together.
type deltaBuffer struct {
	member   string // of the delta: content or reasoning_content; empty: no pieces
	text     []byte // JSON text without quotes
	ids      schema.TokenIDs
	logprobs schema.Logprobs
}

// begin buffers a piece. It returns false if the piece is more than text.
func (b *deltaBuffer) begin(d *schema.Delta) bool {
	member, text, ok := onlyText(d.Delta)
	if ok {
		*b = deltaBuffer{member, bytes.Clone(text), bytes.Clone(d.CompletionIDs), bytes.Clone(d.Logprobs)}
	}
	return ok
}

// merge adds a piece to the buffer. It returns false if the piece does not fit.
func (b *deltaBuffer) merge(d *schema.Delta) bool {
	if b.member == "" {
		return false
	}
	member, text, ok := onlyText(d.Delta)
	if !ok || member != b.member || len(b.text)+len(text) > mergeMost || (len(b.logprobs) > 0) != (len(d.Logprobs) > 0) {
		return false
	}
	b.text, b.ids, b.logprobs = append(b.text, text...), append(b.ids, d.CompletionIDs...), append(b.logprobs, d.Logprobs...)
	return true
}

// drain empties the buffer and returns its pieces as one; nil if it is empty.
func (b *deltaBuffer) drain() *schema.Delta {
	if b.member == "" {
		return nil
	}
	delta := append([]byte(`{"`), b.member...)
	delta = append(append(append(delta, `":"`...), b.text...), `"}`...)
	d := &schema.Delta{V: schema.Version, Delta: delta, CompletionIDs: b.ids, Logprobs: b.logprobs}
	*b = deltaBuffer{}
	return d
}

// onlyText returns the text of a delta with a single text member, written
// without white space, which is the usual form.
func onlyText(delta []byte) (member string, text []byte, ok bool) {
	for _, member := range []string{"content", "reasoning_content"} {
		rest, ok := bytes.CutPrefix(delta, []byte(`{"`+member+`":"`))
		if !ok {
			continue
		}
		rest, ok = bytes.CutSuffix(rest, []byte(`"}`))
		return member, rest, ok && plainJSON(rest)
	}
	return "", nil, false
}

// plainJSON reports whether b is valid between the quotes of a JSON string: no
// quote or control character, and no incomplete escape.
func plainJSON(b []byte) bool {
	for i := 0; i < len(b); i++ {
		switch {
		case b[i] == '"' || b[i] < 0x20:
			return false
		case b[i] == '\\':
			if i++; i == len(b) {
				return false
			}
		}
	}
	return true
}
