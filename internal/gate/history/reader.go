package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Reader reads the requests of one session in one dialect. It is safe for
// concurrent use.
type Reader struct {
	dialect dialect.Dialect
	memory  *Memory
	own     func(json.RawMessage) json.RawMessage
	answers answers

	mu       sync.Mutex         // held while a body is decoded
	decoder  *dialect.Decoder   // nil until the first request
	branches []*parts           // the newest body of each conversation, oldest first
	others   otherMembers       // raw members of the newest body, without conversation and tools
	members  dialect.Members    // others, converted
	tools    tools              // of the newest body that has tools
	replaced int                // characters that U+FFFD replaced in the new part of the newest body
	one      [1]json.RawMessage // buffer for a group with one message, see convert
}

// NewReader returns the reader of one session. own replaces a canonical message by
// its form in the model's words; it returns a copy, or the message itself.
func NewReader(d dialect.Dialect, m *Memory, own func(json.RawMessage) json.RawMessage) *Reader {
	return &Reader{dialect: d, memory: m, own: own, answers: answers{worker: &m.conversations, own: own}}
}

// AsSent is an own that changes nothing.
func AsSent(m json.RawMessage) json.RawMessage { return m }

// decoderOf returns the dialect's Decoder. It makes the Decoder on first use, because
// most sessions use one dialect. The caller holds the lock.
func (s *Reader) decoderOf() *dialect.Decoder {
	if s.decoder == nil {
		d := s.dialect.Decoder()
		s.decoder = &d
	}
	return s.decoder
}

// maxBranches is the number of conversations that a Reader keeps: the agent's
// own, and two of sub-agents.
const maxBranches = 3

// Request is a decoded request. The messages of a beginning that it shares with an
// earlier body share their memory with that body's call.
type Request struct {
	dialect.Request
	Fingerprint uint64 // hash of the body

	kept int64   // bytes of bodies that are kept for the next request
	from *Reader // the reader that keeps them
}

// Decode converts a body that Read returned. Call it once for each body. The agent
// sees its errors.
func (s *Reader) Decode(r *http.Request, body Body) (Request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decoderOf()
	p, keep, err := s.split(body)
	if err != nil {
		return Request{}, fmt.Errorf("the body is not a %s request: %w", s.decoder.Kind, err)
	}
	if s.decoder.Begin != nil {
		if done, err := s.decoder.Begin(r, p); err != nil || done != nil {
			return Request{Request: valueOr(done)}, err
		}
	}
	if err := s.convert(p, keep); err != nil {
		return Request{}, err
	}
	if !s.others.same(p) {
		if err := s.readMembers(p); err != nil {
			return Request{}, err
		}
	}
	c, err := s.call(p, body)
	if err != nil {
		return Request{}, err
	}
	return s.request(p, s.decoder.Request(r, c)), nil
}

func valueOr(r *dialect.Request) dialect.Request {
	if r == nil {
		return dialect.Request{}
	}
	return *r
}

// convert converts the items that no earlier body has. Each gets the form in
// the model's words.
func (s *Reader) convert(p *parts, keep int) error {
	grown, whole := false, 0 // whole counts the bytes once the conversation has grown
	own := func(all []json.RawMessage) error {
		before := grown
		for i, m := range all {
			all[i] = s.own(m)
			grown = grown || len(all[i]) > len(m)
		}
		if grown && !before {
			whole = sizeOf(p.converted)
		}
		if grown {
			whole += sizeOf(all)
		}
		if whole > maxOwn {
			return &SizeError{fmt.Sprintf("With the model's own words for its tool calls the conversation has more than %d bytes.", maxOwn)}
		}
		return nil
	}
	if s.decoder.Messages != nil {
		return p.fold(keep, func(p dialect.Parts, i int) (dialect.Group, error) {
			g, err := s.decoder.Messages(p, i)
			if err == nil {
				err = own(g.Messages)
			}
			return g, err
		})
	}
	fresh := 0 // bytes of canonical messages, which are copied to one buffer
	for _, item := range p.items[keep:] {
		fresh += item.to - item.from
	}
	room := make([]byte, 0, fresh)
	return p.fold(keep, func(_ dialect.Parts, i int) (dialect.Group, error) {
		at := len(room)
		room = append(room, p.Item(i)...)
		s.one[0] = room[at:len(room):len(room)]
		return dialect.Group{Messages: s.one[:]}, own(s.one[:])
	})
}

// maxOwn bounds the bytes of a conversation that is longer in the model's own words than
// in the agent's. An agent may repeat a tool call without end, and each one takes the
// reasoning of its answer.
const maxOwn = 2 * BodyLimit

// readMembers reads the members other than the conversation and the tools.
func (s *Reader) readMembers(p *parts) error {
	m := dialect.Members{Params: make(schema.SortedMap[json.RawMessage], len(p.names))}
	for i, name := range p.names {
		if !p.isOther(i) {
			continue
		}
		if err := s.decoder.Member(&m, name, p.value(p.values[i])); err != nil {
			return err
		}
	}
	ownParams(m.Params)
	s.others.note(p)
	s.members = m
	return nil
}

// call puts the converted parts of a body together.
func (s *Reader) call(p *parts, body Body) (dialect.Converted, error) {
	m := &s.members
	c := dialect.Converted{Call: schema.Call{Model: m.Model, Stream: m.Stream, Params: m.Params}, Options: m.Options, Answers: &s.answers}
	first := m.First
	if m.Previous != "" {
		before, err := s.previous(p, body)
		if err != nil {
			return c, err
		}
		first = append(slices.Clip(first), before...)
	}
	tools, err := s.tools.convert(p, s.decoder.Tools)
	if err != nil {
		return c, err
	}
	c.Call.Tools, c.Names = tools.List, tools.Names
	if c.Call.Messages = p.messages(first...); m.Last != nil {
		c.Call.Messages = append(c.Call.Messages, m.Last)
	}
	// First belongs to this request, not to the conversation.
	if c.Conversation = c.Call.Messages[len(m.First):]; len(c.Conversation) == 0 {
		return c, fmt.Errorf("%s: want at least one", s.decoder.Conversation)
	}
	return c, nil
}

// previous returns the conversation of the answer that a request names.
func (s *Reader) previous(p *parts, body Body) ([]json.RawMessage, error) {
	id := s.members.Previous
	before, err := s.answers.find(id)
	if err != nil {
		return nil, fmt.Errorf("previous_response_id: %w", err)
	}
	if n := sizeOf(before) + body.Len(); n > BodyLimit {
		return nil, &SizeError{fmt.Sprintf("The conversation of %.80q and the request have %d bytes, more than %d.", id, n, BodyLimit)}
	}
	if n := len(before) + len(p.items); n > maxItems {
		return nil, &SizeError{fmt.Sprintf("The conversation of %.80q and the request have %d messages, more than %d.", id, n, maxItems)}
	}
	return before, nil
}

// request keeps a decoded body as a branch and returns its Request.
func (s *Reader) request(p *parts, d dialect.Request) Request {
	s.branches = append(s.branches, p)
	s.trim()
	r := Request{Request: d, Fingerprint: p.fingerprint, from: s, kept: int64(cap(s.tools.raw) + cap(s.others.values))}
	for _, b := range s.branches {
		r.kept += int64(cap(b.text) + cap(b.items)*perItem)
	}
	r.Call.Replaced = s.replaced
	return r
}

// Forget drops the kept bodies; the next one is read from its beginning.
func (s *Reader) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.branches {
		s.memory.recycle(b.text)
	}
	s.branches, s.others, s.members, s.tools = nil, otherMembers{}, dialect.Members{}, tools{}
}

// Close frees the kept bodies and conversations.
func (s *Reader) Close() {
	s.Forget()
	s.answers.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decoder = nil
}

// split splits a body. keep is the number of converted items that it shares
// with an earlier body. The caller holds the lock until the whole request is
// decoded.
func (s *Reader) split(body Body) (p *parts, keep int, err error) {
	p, keep = body.parts, body.keep
	s.replaced = 0
	p.hashText(keep, s.memory.seed)
	using := s.memory.scratch()
	defer s.memory.reuse(using)
	if err = s.parse(p, keep, using); err == nil {
		return p, keep, nil
	}
	if _, n := rawjson.Mend(p.text[p.end(keep):]); n > 0 { // the agent cut a text between two halves of a character
		p.mend, s.replaced = true, n
		err = s.parse(p, keep, using, jsontext.AllowInvalidUTF8(true))
	}
	return p, keep, err
}

// parse parses the part after the shared items.
func (s *Reader) parse(p *parts, keep int, using *scratch, options ...jsontext.Options) error {
	if keep == 0 {
		p.before = 0
	}
	p.cut(keep)
	d := &using.decoder
	using.large = len(p.text)-p.end(keep) > maxPooled
	if keep == 0 {
		d.Reset(bytes.NewBuffer(p.text), options...)
		return p.read(d, 0, false)
	}
	// Parse the rest behind a prefix with the conversation's array and {} for the last
	// shared item.
	from := p.end(keep)
	rest := append(append(append(using.rest[:0], `{"`...), s.decoder.Conversation...), `":[{}`...)
	shift := from - len(rest)
	rest = append(rest, p.text[from:]...)
	using.rest = rest
	d.Reset(bytes.NewBuffer(rest), options...)
	return p.read(d, shift, true)
}

// trim drops the oldest bodies beyond maxBranches.
func (s *Reader) trim() {
	for len(s.branches) > maxBranches {
		s.memory.recycle(s.branches[0].text)
		s.branches = slices.Delete(s.branches, 0, 1)
	}
}

// perItem is the memory of an item in addition to its text, in bytes.
const perItem = 72
