package trainer

import (
	"bytes"
	"time"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
)

// Stream sends an answer while it is generated. A worker that loses a piece
// asks for it again. Pieces of text that come faster than one in mergeWithin
// travel together, so that a fast engine costs no message for each token.
type Stream struct{ p *Pending }

const (
	mergeWithin = 2 * time.Millisecond
	mergeMost   = 32 << 10 // bytes of text in one message
)

// Stream answers the call piece by piece.
func (p *Pending) Stream() *Stream { return &Stream{p} }

// Delta sends one piece.
func (st *Stream) Delta(d *schema.Delta) error {
	d.V = schema.Version
	if err := d.Validate(); err != nil {
		return err
	}
	s := st.p.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted() {
		return ErrOver
	}
	if s.held.merge(d) {
		return nil
	}
	if err := s.flush(); err != nil {
		return err
	}
	since := time.Since(s.sent)
	if since >= mergeWithin || !s.held.begin(d) {
		return s.sendDelta(d)
	}
	if s.later == nil {
		s.later = time.AfterFunc(mergeWithin-since, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.wanted() {
				_ = s.flush() // what is held was checked
			}
		})
	} else {
		s.later.Reset(mergeWithin - since)
	}
	return nil
}

// Final ends the stream with the whole reply, which repeats what the deltas
// said.
func (st *Stream) Final(r *schema.Reply) error { return st.p.Reply(r) }

// flush sends what is held back. It needs the lock.
func (s *state) flush() error {
	if d := s.held.take(); d != nil {
		return s.sendDelta(d)
	}
	return nil
}

// sendDelta needs the lock.
func (s *state) sendDelta(d *schema.Delta) error {
	f, err := s.add(d)
	if err != nil {
		return err
	}
	s.said, s.sent = true, time.Now()
	s.send(f)
	return nil
}

// add numbers a piece and keeps it for a worker that asks again. It needs the
// lock.
func (s *state) add(d *schema.Delta) (broker.Frame, error) {
	body, err := s.t.side.EncodeFrame(s.ctx, d)
	if err != nil {
		return broker.Frame{}, err
	}
	f := broker.Frame{Kind: schema.FrameDelta, Gen: s.gen, Seq: len(s.deltas), Body: body}
	s.deltas = append(s.deltas, body)
	return f, nil
}

// heldBack are pieces of one text that wait to travel together.
type heldBack struct {
	member   string // of the delta: content or reasoning_content; empty: nothing is held
	text     []byte // as it stands in JSON, without quotes
	ids      schema.TokenIDs
	logprobs schema.Logprobs
}

// begin holds a piece back. It is false for one that is not only text.
func (h *heldBack) begin(d *schema.Delta) bool {
	member, text, ok := onlyText(d.Delta)
	if ok {
		*h = heldBack{member, bytes.Clone(text), bytes.Clone(d.CompletionIDs), bytes.Clone(d.Logprobs)}
	}
	return ok
}

// merge adds a piece to what is held. It is false if it does not belong to it.
func (h *heldBack) merge(d *schema.Delta) bool {
	if h.member == "" {
		return false
	}
	member, text, ok := onlyText(d.Delta)
	if !ok || member != h.member || len(h.text)+len(text) > mergeMost || (len(h.logprobs) > 0) != (len(d.Logprobs) > 0) {
		return false
	}
	h.text, h.ids, h.logprobs = append(h.text, text...), append(h.ids, d.CompletionIDs...), append(h.logprobs, d.Logprobs...)
	return true
}

// take gives what is held as one piece; nil if nothing is.
func (h *heldBack) take() *schema.Delta {
	if h.member == "" {
		return nil
	}
	b := append([]byte(`{"`), h.member...)
	b = append(append(append(b, `":"`...), h.text...), `"}`...)
	d := &schema.Delta{V: schema.Version, Delta: b, CompletionIDs: h.ids, Logprobs: h.logprobs}
	*h = heldBack{}
	return d
}

// onlyText takes a delta apart that is nothing but a piece of one text, in the
// form without white space in which it usually comes.
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

// plainJSON reports whether bytes can stand between the quotes of a JSON
// string: nothing ends it, and no escape is cut in two.
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
