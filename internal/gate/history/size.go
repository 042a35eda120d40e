package history

import (
	"bytes"
	"unicode/utf8"
)

// BodyLimit is the largest request body in bytes. It is above the limit of
// a NATS message, so that a refusal can name the size that would fit.
const BodyLimit = 16 << 20

// SizeError refuses a request that is too large for any session.
type SizeError struct{ Text string }

func (e *SizeError) Error() string { return e.Text }

// Estimates of the memory for reading and sending a request, in bytes, measured
// by TestHostileRequestsCostNoMoreThanTheSettings.
const (
	perByte    = 2   // of the new part, while it is read
	perMended  = 12  // in addition, if the new part is not UTF-8: its bytes become U+FFFD
	perValue   = 320 // in the new part, while it is read
	perMessage = 128 // in addition to its text
	perSent    = 2   // per new byte, while the call is open
	smallBody  = 16 << 10
)

// New returns the size in bytes of the part that no earlier body has.
func (b Body) New() int { return len(b.fresh()) }

func (b Body) fresh() []byte { return b.parts.text[b.parts.end(b.keep):] }

// Cost estimates the memory for reading the body, in bytes.
func (b Body) Cost() int64 {
	fresh := b.fresh()
	n := int64(cap(b.parts.text)) + perByte*int64(len(fresh))
	if len(fresh) > smallBody {
		if !utf8.Valid(fresh) {
			n += perMended * int64(len(fresh))
		}
		n += perValue * countValues(fresh)
	}
	return n
}

// countValues estimates the number of values in JSON text.
func countValues(v []byte) (n int64) {
	for i := 0; i < len(v); i++ {
		switch v[i] {
		case ',', '{', '[':
			n++
		case '"':
			for i++; i < len(v); i++ {
				to := bytes.IndexByte(v[i:], '"')
				if to < 0 {
					return n
				}
				escapes := 0
				for at := i + to - 1; at >= i && v[at] == '\\'; at-- {
					escapes++
				}
				if i += to; escapes%2 == 0 {
					break
				}
			}
		}
	}
	return n
}

// Weight estimates the memory of the call while it is open, in bytes; fresh is
// the number of new bytes in its request.
func (r *Request) Weight(fresh int) int64 {
	n := perSent*int64(fresh) + int64(len(r.Call.Tools))
	for _, m := range r.Call.Messages {
		n += int64(len(m)) + perMessage
	}
	for name, v := range r.Call.Params {
		n += int64(len(name) + len(v) + perMessage)
	}
	return n
}
