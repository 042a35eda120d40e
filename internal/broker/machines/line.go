package machines

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// Timing has the times of a line. Both sides should have the same.
type Timing struct {
	Beat    time.Duration // longest time between two messages of a side
	Silence time.Duration // a side that hears nothing for this time gives the line up
}

// DefaultTiming keeps a line through a minute without a connection.
func DefaultTiming() Timing { return Timing{Beat: 5 * time.Second, Silence: 90 * time.Second} }

const (
	// window bounds the bytes of a direction that are not acknowledged, and those that
	// are received and not written to the local end.
	window = 1 << 20
	// firstRetry is the shortest time after which bytes without an acknowledgement are
	// sent again. The time doubles up to maxRetry while nothing is acknowledged, and is
	// twice the time between acknowledgements while they come.
	firstRetry = 500 * time.Millisecond
	maxRetry   = 2 * time.Second
	// rewindTime is the shortest time between two answers to kindAgain.
	rewindTime = 200 * time.Millisecond
)

// line is one side of a byte stream over messages that may be lost, but arrive in
// their order. Each byte has an offset in the stream of its direction; the side keeps
// sent bytes until they are acknowledged. The bytes of the process or the client are
// those of local.
type line struct {
	out    func(encoded []byte) // publishes a message, which may be lost
	local  *net.UnixConn
	timing Timing
	wake   chan struct{}
	ended  chan struct{} // no more messages are sent

	mu      sync.Mutex
	changed *sync.Cond
	over    bool            // run has ended
	open    []byte          // payload of kindOpen until the other side has answered; nil: none to send
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
	retry    time.Duration
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

func newLine(local *net.UnixConn, t Timing, out func([]byte)) *line {
	now := time.Now()
	l := &line{out: out, local: local, timing: t, wake: make(chan struct{}, 1), ended: make(chan struct{}), burst: window, retry: firstRetry, heard: now, progress: now, tried: now}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// wants makes this side the client, which opens the line.
func (l *line) wants(o schema.LineOpen) error {
	o.V = schema.Version
	data, err := schema.Encode(&o)
	if err != nil {
		return fmt.Errorf("open a line: %w", err)
	}
	l.open = data
	return nil
}

// lineName returns a new name of a line.
func lineName() string {
	token := make([]byte, 16)
	_, _ = rand.Read(token) // never fails
	return hex.EncodeToString(token)
}

func (l *line) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run carries the bytes until both directions have ended, the other side is gone or
// the context ends. final is called after the end of local's bytes and returns what the
// other side gets. run returns the end of the other side, or the reason for an early
// end. It closes local.
func (l *line) run(ctx context.Context, final func() schema.LineEnd) schema.LineEnd {
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
func (l *line) read(final func() schema.LineEnd) {
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
func (l *line) write() {
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

// receive takes a message of the other side. It does not block.
func (l *line) receive(f frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.poke()
	now := time.Now()
	l.heard = now
	switch f.kind {
	case kindReset:
		end := endOf(f.data)
		if l.theirs != nil && end.Reason == schema.LineUnknown { // the other side has all and is gone
			l.ackedEnd = true
		} else if l.abort == nil {
			l.abort = &end
		}
		return
	case kindOpen:
		l.owe = true
		return
	}
	l.open = nil
	l.acknowledge(f, now)
	l.credit = max(l.credit, f.credit)
	switch {
	case f.kind == kindEnd && f.seq == l.got && l.theirs == nil:
		end := endOf(f.data)
		l.theirs, l.owe = &end, true
	case f.kind == kindEnd:
		l.owe, l.again = true, f.seq > l.got
	case len(f.data) > 0:
		l.take(f)
	}
	l.changed.Broadcast()
}

// acknowledge drops the bytes that the other side has.
func (l *line) acknowledge(f frame, now time.Time) {
	most := l.sent
	if l.endSent {
		most++
	}
	if f.ack > l.acked && f.ack <= most {
		n := f.ack - l.acked
		if n > uint64(len(l.unacked)) {
			n, l.ackedEnd = uint64(len(l.unacked)), true
		}
		l.unacked = l.unacked[n:]
		l.acked += n
		l.next = max(l.next, l.acked)
		l.burst = min(l.burst+n, window)
		l.retry = min(max(2*now.Sub(l.progress), firstRetry), maxRetry)
		l.progress, l.tried = now, now
	}
	if f.kind == kindAgain && f.ack == l.acked && now.Sub(l.rewound) > rewindTime {
		l.next, l.sentEnd, l.rewound = l.acked, false, now
	}
}

// take keeps the bytes of a message that are the next ones. A side that sends more
// than its credit loses the rest.
func (l *line) take(f frame) {
	l.owe = true
	if f.seq > l.got {
		l.again = true
		return
	}
	skip := l.got - f.seq
	if skip >= uint64(len(f.data)) || l.theirs != nil {
		return
	}
	data := f.data[skip:]
	data = data[:min(uint64(len(data)), l.written+window-l.got)]
	l.waiting = append(l.waiting, data...)
	l.got += uint64(len(data))
}

// pump sends messages until the line's end, which it returns.
func (l *line) pump(ctx context.Context) schema.LineEnd {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-l.wake:
		case <-timer.C:
		case <-ctx.Done():
			end := schema.LineEnd{Reason: schema.LineClosed, Text: context.Cause(ctx).Error()}
			l.out(resetOf(end.Reason, end.Text))
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
func (l *line) step(now time.Time) (messages [][]byte, wait time.Duration, end *schema.LineEnd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.abort != nil {
		if l.open != nil { // the other side may have taken a later kindOpen than the refused one
			messages = append(messages, resetOf(schema.LineClosed, "the line was refused"))
		}
		return messages, 0, l.abort
	}
	if now.Sub(l.heard) > l.timing.Silence {
		end := &schema.LineEnd{Reason: schema.LineSilent, Text: "nothing was heard for " + l.timing.Silence.String()}
		return [][]byte{resetOf(end.Reason, end.Text)}, 0, end
	}
	add := func(k kind, seq uint64, data []byte) {
		f := frame{kind: k, seq: seq, ack: l.got, credit: l.written + window, data: data}
		if l.theirs != nil {
			f.ack++
		}
		messages = append(messages, f.encode())
		l.owe, l.again, l.said, l.offered = false, false, now, f.credit
	}
	if l.open != nil {
		if wait = l.retry - now.Sub(l.said); wait <= 0 {
			add(kindOpen, 0, l.open)
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
		l.retry = min(2*l.retry, maxRetry)
	}
	k := kindData
	if l.again {
		k = kindAgain
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
		add(kindEnd, all, encodeEnd(*l.final))
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
