// Package line carries a byte stream in both directions over messages that may be lost: by
// NATS, or by connections that break and come back. Each byte is kept until the other side
// has it. docs/machine.md describes the messages.
package line

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/kernel"
	"github.com/turngate/turngate/schema"
)

// Timing has the times of a line. Both sides should have the same.
type Timing struct {
	Beat    time.Duration // longest time between two messages of a side
	Silence time.Duration // a side that hears nothing for this time gives the line up
	// Short bounds a line with one operation, at its machine; 0: 3 minutes.
	Short time.Duration
	// Retry is the time after which bytes without an acknowledgement are sent again; 0: as
	// long as the other side takes for acknowledgements.
	Retry time.Duration
}

// DefaultTiming keeps a line through a minute without a connection.
func DefaultTiming() Timing { return Timing{Beat: 5 * time.Second, Silence: 90 * time.Second} }

const (
	// window bounds the bytes of a direction that are not acknowledged, and the bytes that are
	// received and not written to the local end.
	window = 1 << 20
	// firstRetry is the shortest time after which bytes without an acknowledgement are
	// sent again. The time doubles up to maxRetry while nothing is acknowledged, and is
	// twice the time between acknowledgements while they come.
	firstRetry = 500 * time.Millisecond
	maxRetry   = 2 * time.Second
	// rewindTime is the shortest time between two answers to KindAgain.
	rewindTime = 200 * time.Millisecond
)

// Line is one side of a byte stream over messages that may be lost, but arrive in
// their order. Each byte has an offset in the stream of its direction; the side keeps
// sent bytes until they are acknowledged. local has the bytes of the process or the client.
type Line struct {
	out    func(encoded []byte) // publishes a message, which may be lost
	local  *net.UnixConn
	timing Timing
	wake   chan struct{}
	ended  chan struct{} // no more messages are sent

	mu      sync.Mutex
	changed *sync.Cond
	over    bool            // run has ended
	open    []byte          // payload of KindOpen until the other side has answered; nil: none to send
	abort   *schema.LineEnd // the reason for an early end

	unacked  []byte // bytes from acked on
	acked    uint64
	next     uint64 // offset of the next byte to send
	sent     uint64 // largest value of next
	credit   uint64 // of the other side
	burst    uint64 // most bytes without an acknowledgement: few after a loss, so that copies do not fill a slow connection
	final    *schema.LineEnd
	sentEnd  bool // since the last rewind
	endSent  bool // ever
	ackedEnd bool
	retry    time.Duration // of now, between first and longest
	first    time.Duration
	longest  time.Duration
	progress time.Time // of acked, or when a byte after it was sent first
	tried    time.Time // when it was sent last
	rewound  time.Time

	waiting   []byte // received and not written to local
	got       uint64
	written   uint64
	offered   uint64 // credit of the last message
	theirs    *schema.LineEnd
	delivered bool // all bytes are written, and local has their end
	owe       bool // a message with ack and credit
	again     bool // bytes are missing
	heard     time.Time
	said      time.Time
}

// New returns a side of a line. out sends a message to the other side; it may lose it.
func New(local *net.UnixConn, t Timing, out func([]byte)) *Line {
	now := time.Now()
	l := &Line{out: out, local: local, timing: t, wake: make(chan struct{}, 1), ended: make(chan struct{}), burst: window, first: firstRetry, longest: maxRetry, heard: now, progress: now, tried: now}
	if t.Retry > 0 {
		l.first, l.longest = t.Retry, t.Retry
	}
	l.retry = l.first
	l.changed = sync.NewCond(&l.mu)
	return l
}

// Accepts makes this side the one that took a line with the message first. Run sends the answer.
func (l *Line) Accepts(first Frame) { l.credit, l.owe = first.Credit, true }

// Ended returns a channel that is closed when Run sends no more messages.
func (l *Line) Ended() <-chan struct{} { return l.ended }

// Out is the out of New.
func (l *Line) Out() func(encoded []byte) { return l.out }

// Resend sends again the bytes without an acknowledgement: the way to the other side is a new
// one.
func (l *Line) Resend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next, l.sentEnd, l.owe, l.tried = l.acked, false, true, time.Now()
	l.poke()
}

// Wants makes this side the client, which opens the line.
func (l *Line) Wants(o schema.LineOpen) error {
	o.V = schema.Version
	data, err := schema.Encode(&o)
	if err != nil {
		return fmt.Errorf("open a line: %w", err)
	}
	l.open = data
	return nil
}

// NewName returns a new name of a line.
func NewName() string {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails
	return hex.EncodeToString(token)
}

func (l *Line) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run carries the bytes until both directions have ended, the other side is gone or
// the context ends. final is called after the end of local's bytes and returns the message for
// the other side. Run returns the end of the other side, or the reason for an early end. It
// closes local.
func (l *Line) Run(ctx context.Context, final func() schema.LineEnd) schema.LineEnd {
	var bg sync.WaitGroup
	bg.Go(func() { l.read(final) })
	bg.Go(l.write)
	end := l.pump(ctx)
	close(l.ended)
	l.mu.Lock()
	l.over = true
	l.changed.Broadcast()
	l.mu.Unlock()
	_ = l.local.Close() // the process may have closed the other end
	bg.Wait()
	return end
}

// read takes the bytes of local.
func (l *Line) read(final func() schema.LineEnd) {
	buf := make([]byte, maxChunk)
	for {
		n, err := l.local.Read(buf)
		l.mu.Lock()
		for !l.over && len(l.unacked)+n > window {
			l.changed.Wait()
		}
		if l.over {
			l.mu.Unlock()
			return
		}
		l.unacked = append(l.unacked, buf[:n]...)
		l.mu.Unlock()
		l.poke()
		if err != nil {
			break
		}
	}
	end := final()
	l.mu.Lock()
	l.final = &end
	l.mu.Unlock()
	l.poke()
}

// write gives local the bytes that were received. A local that takes no more loses
// them, so that the other side can come to its end.
func (l *Line) write() {
	broken := false
	for {
		l.mu.Lock()
		for !l.over && len(l.waiting) == 0 && l.theirs == nil {
			l.changed.Wait()
		}
		if l.over {
			l.mu.Unlock()
			return
		}
		data, last := l.waiting, l.theirs != nil
		l.waiting = nil
		l.mu.Unlock()
		if len(data) > 0 && !broken {
			_, err := l.local.Write(data)
			broken = err != nil
		}
		if last {
			_ = l.local.CloseWrite() // of a closed local there is nothing to end
		}
		l.mu.Lock()
		l.written += uint64(len(data))
		l.owe = l.owe || l.written+window-l.offered >= window/4
		l.delivered = last
		l.mu.Unlock()
		l.poke()
		if last {
			return
		}
	}
}

// Receive takes a message of the other side. It does not block.
func (l *Line) Receive(f Frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.poke()
	now := time.Now()
	l.heard = now
	switch f.Kind {
	case KindReset:
		end := endOf(f.Data)
		if l.theirs != nil && end.Reason == schema.LineUnknown { // the other side has all and is gone
			l.ackedEnd = true
		} else if l.abort == nil {
			l.abort = &end
		}
		return
	case KindOpen:
		l.owe = true
		return
	}
	l.open = nil
	l.acknowledge(f, now)
	l.credit = max(l.credit, f.Credit)
	switch {
	case f.Kind == KindEnd && f.Seq == l.got && l.theirs == nil:
		end := endOf(f.Data)
		l.theirs, l.owe = &end, true
	case f.Kind == KindEnd:
		l.owe, l.again = true, f.Seq > l.got
	case len(f.Data) > 0:
		l.take(f)
	case f.Seq > l.got:
		l.owe, l.again = true, true
	}
	l.changed.Broadcast()
}

// Gone tells this side that the other one has ended, as its reset does.
func (l *Line) Gone(text string) {
	l.Receive(Frame{Kind: KindReset, Data: encodeEnd(schema.LineEnd{Reason: schema.LineUnknown, Text: text})})
}

// acknowledge drops the bytes that the other side has.
func (l *Line) acknowledge(f Frame, now time.Time) {
	most := l.sent
	if l.endSent {
		most++
	}
	if f.Ack > l.acked && f.Ack <= most {
		n := f.Ack - l.acked
		if n > uint64(len(l.unacked)) {
			n, l.ackedEnd = uint64(len(l.unacked)), true
		}
		l.unacked = l.unacked[n:]
		l.acked += n
		l.next = max(l.next, l.acked)
		l.burst = min(l.burst+n, window)
		l.retry = min(max(2*now.Sub(l.progress), l.first), l.longest)
		l.progress, l.tried = now, now
	}
	if f.Kind == KindAgain && f.Ack == l.acked && now.Sub(l.rewound) > rewindTime {
		l.next, l.sentEnd, l.rewound = l.acked, false, now
	}
}

// take keeps the bytes of a message that are the next ones. A side that sends more
// than its credit loses the rest.
func (l *Line) take(f Frame) {
	l.owe = true
	if f.Seq > l.got {
		l.again = true
		return
	}
	skip := l.got - f.Seq
	if skip >= uint64(len(f.Data)) || l.theirs != nil {
		return
	}
	data := f.Data[skip:]
	data = data[:min(uint64(len(data)), l.written+window-l.got)]
	l.waiting = append(l.waiting, data...)
	l.got += uint64(len(data))
}

// pump sends messages until the line's end, which it returns.
func (l *Line) pump(ctx context.Context) schema.LineEnd {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-l.wake:
		case <-timer.C:
		case <-ctx.Done():
			end := schema.LineEnd{Reason: schema.LineClosed, Text: context.Cause(ctx).Error()}
			l.out(ResetOf(end.Reason, end.Text))
			return end
		}
		messages, wait, end := l.step(time.Now())
		for _, m := range messages {
			l.out(m)
		}
		if end != nil {
			return *end
		}
		timer.Reset(wait)
	}
}

// step returns the messages to send now, and the time until the next step or the
// line's end.
func (l *Line) step(now time.Time) (messages [][]byte, wait time.Duration, end *schema.LineEnd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.abort != nil {
		if l.open != nil { // the other side may have taken a later KindOpen than the refused one
			messages = append(messages, ResetOf(schema.LineClosed, "the line was refused"))
		}
		return messages, 0, l.abort
	}
	if now.Sub(l.heard) > l.timing.Silence {
		end := &schema.LineEnd{Reason: schema.LineSilent, Text: "nothing was heard for " + l.timing.Silence.String()}
		return [][]byte{ResetOf(end.Reason, end.Text)}, 0, end
	}
	add := func(k Kind, seq uint64, data []byte) {
		f := Frame{Kind: k, Seq: seq, Ack: l.got, Credit: l.written + window, Data: data}
		if l.theirs != nil {
			f.Ack++
		}
		messages = append(messages, f.Encode())
		l.owe, l.again, l.said, l.offered = false, false, now, f.Credit
	}
	if l.open != nil {
		if wait = l.retry - now.Sub(l.said); wait <= 0 {
			add(KindOpen, 0, l.open)
			wait = l.retry
		}
		return messages, wait, nil
	}
	if l.next == l.acked && !l.sentEnd {
		l.progress, l.tried = now, now // nothing is on its way
	}
	pending := len(l.unacked) > 0 && l.next > l.acked || l.sentEnd && !l.ackedEnd
	if pending && now.Sub(l.tried) > l.retry {
		l.next, l.sentEnd, l.burst, l.tried = l.acked, false, maxChunk, now
		l.retry = min(2*l.retry, l.longest)
	}
	k := KindData
	if l.again {
		k = KindAgain
	}
	all := l.acked + uint64(len(l.unacked))
	for most := min(all, l.credit, l.acked+l.burst); l.next < most; {
		from := l.next - l.acked
		data := l.unacked[from:min(from+maxChunk, most-l.acked)]
		add(k, l.next, data)
		l.next += uint64(len(data))
		l.sent = max(l.sent, l.next)
	}
	if l.final != nil && l.next == all && !l.sentEnd && !l.ackedEnd {
		add(KindEnd, all, encodeEnd(*l.final))
		l.sentEnd, l.endSent = true, true
	}
	if l.again || l.owe || now.Sub(l.said) >= l.timing.Beat {
		add(k, l.next, nil)
	}
	if l.ackedEnd && l.delivered {
		return messages, 0, l.theirs
	}
	wait = min(l.timing.Beat-now.Sub(l.said), l.timing.Silence-now.Sub(l.heard)+time.Millisecond)
	if len(l.unacked) > 0 && l.next > l.acked || l.sentEnd && !l.ackedEnd {
		wait = min(wait, l.retry-now.Sub(l.tried)+time.Millisecond)
	}
	return messages, max(wait, time.Millisecond), nil
}

// Pair returns two connected ends, of which a line takes the first one.
func Pair() (local *net.UnixConn, other *os.File, err error) {
	ours, other, err := kernel.Pair()
	if err != nil {
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		other.Close()
		return nil, nil, fmt.Errorf("open a line: %w", err)
	}
	return conn.(*net.UnixConn), other, nil
}
