package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/turngate/turngate/internal/broker/wire"
)

const armFor = 10 * time.Second

func (q *queue) nextSubject() string {
	return "$JS.API.CONSUMER.MSG.NEXT." + q.stream + "." + q.consumer
}

// errNoMessage means that a queue is empty, errNoQueue that it does not exist or
// has no leader.
var (
	errNoMessage = errors.New("no message")
	errNoQueue   = errors.New("no queue")
)

// poller polls one queue after the other. It has a subscription of its own: a
// message from a stream has its own subject instead of an inbox token, so the
// client's shared reply inbox could not match it to a request.
type poller struct {
	inbox string
	sub   *nats.Subscription
	// got has room for the answers to one poll. The default channel of the client
	// would take half a MB.
	got chan *nats.Msg
}

// puller pulls messages from the queues of all trainers.
type puller struct {
	*base
	lanes  *lanes
	roster *roster
	free   chan *poller
}

func newPuller(b *base, l *lanes, r *roster) *puller {
	return &puller{base: b, lanes: l, roster: r, free: make(chan *poller, 4)}
}

// poll asks the queues for up to n messages, without waiting.
func (p *puller) poll(ctx context.Context, n int) ([]*delivery, error) {
	begun := time.Now()
	asks := p.lanes.turns(begun, n)
	if len(asks) == 0 {
		return nil, nil
	}
	one, err := p.poller()
	if err != nil {
		p.lanes.takeBack(asks)
		return nil, err
	}
	var out []*delivery
	for ; len(asks) > 0; asks = p.lanes.turns(begun, n-len(out)) {
		got, err := p.round(ctx, one, asks)
		out = append(out, got...)
		if err == nil {
			continue
		}
		// A late answer must not be taken for the answer to another poll.
		_ = one.sub.Unsubscribe()
		if len(out) > 0 {
			return out, nil
		}
		return nil, err
	}
	p.release(one)
	return out, nil
}

// round asks queues one after the other, up to the first that does not answer.
func (p *puller) round(ctx context.Context, by *poller, asks []turn) (out []*delivery, err error) {
	for i, a := range asks {
		got, err := p.ask(ctx, by, a.queue, a.n)
		out = append(out, got...)
		p.note(a, len(got), err)
		if err != nil && !errors.Is(err, errNoMessage) && !errors.Is(err, errNoQueue) {
			p.lanes.gaveNothing(a.queue)
			p.lanes.takeBack(asks[i+1:])
			return out, err
		}
	}
	return out, nil
}

// note notes how many messages a queue gave, and whether it must be mended.
func (p *puller) note(a turn, got int, err error) {
	if got > 0 {
		p.lanes.gave(a.queue)
	}
	for range a.n - got {
		p.lanes.gaveNone(a.queue, errors.Is(err, errNoQueue))
	}
	if err != nil && !errors.Is(err, errNoMessage) {
		p.roster.isBroken(a.trainer)
	}
}

// ask asks a queue for up to n messages, without waiting. The error tells why
// there are fewer: errNoMessage, errNoQueue, or no answer.
func (p *puller) ask(ctx context.Context, by *poller, q *queue, n int) ([]*delivery, error) {
	if err := p.broker.BulkConn().PublishRequest(q.nextSubject(), by.inbox, fmt.Appendf(nil, `{"batch":%d,"no_wait":true}`, n)); err != nil {
		return nil, fmt.Errorf("pull from %s of %s: %w", q.consumer, q.stream, err)
	}
	// Without the caller's cancellation: if the answer is a request and is not
	// read, no worker runs that request for a whole ack wait.
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), wire.OpTimeout)
	defer cancel()
	var out []*delivery
	for len(out) < n {
		select {
		case m := <-by.got:
			d, err := p.received(m)
			if err != nil {
				return out, err
			}
			out = append(out, d)
		case <-op.Done():
			// A missing consumer answers nothing if a client listens to every subject,
			// and neither does one with the largest number of unacknowledged messages.
			return out, fmt.Errorf("pull from %s of %s: %w", q.consumer, q.stream, context.Cause(op))
		}
	}
	return out, nil
}

// one asks a queue for a message, without waiting; nil if it has none.
func (p *puller) one(ctx context.Context, q *queue) (*delivery, error) {
	by, err := p.poller()
	if err != nil {
		return nil, err
	}
	got, err := p.ask(ctx, by, q, 1)
	switch {
	case len(got) > 0:
		p.release(by)
		return got[0], nil
	case errors.Is(err, errNoMessage), errors.Is(err, errNoQueue):
		p.release(by)
		return nil, nil
	default:
		_ = by.sub.Unsubscribe()
		return nil, err
	}
}

// isGone reports whether err says that a queue does not exist. If so, the roster
// mends the queue.
func (p *puller) isGone(q *queue, err error) bool {
	if !errors.Is(err, errNoQueue) {
		return false
	}
	p.roster.isBroken(q.trainer)
	return true
}

// release makes a poller free for others.
func (p *puller) release(one *poller) {
	select {
	case p.free <- one:
	default:
		_ = one.sub.Unsubscribe()
	}
}

// close ends the subscriptions of the free pollers.
func (p *puller) close() {
	for {
		select {
		case one := <-p.free:
			_ = one.sub.Unsubscribe()
		default:
			return
		}
	}
}

// poller returns a free poller, or a new one.
func (p *puller) poller() (*poller, error) {
	select {
	case one := <-p.free:
		return one, nil
	default:
	}
	one := &poller{inbox: p.broker.Inbox() + ".poll." + nuid.Next(), got: make(chan *nats.Msg, maxPull+8)}
	var err error
	if one.sub, err = p.broker.BulkConn().ChanSubscribe(one.inbox, one.got); err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	return one, nil
}

// received turns an answer of the server into a delivery. An answer with a status
// becomes an error: errNoMessage if the queue is empty, errNoQueue if it is gone.
func (p *puller) received(m *nats.Msg) (*delivery, error) {
	status := m.Header.Get("Status")
	switch {
	case status == "" || len(m.Data) > 0:
		return newDelivery(p.broker.BulkConn(), m)
	case status == "404" || status == "408":
		return nil, errNoMessage
	case status == "503" || status == "409" && strings.Contains(strings.ToLower(m.Header.Get("Description")), "deleted"):
		return nil, errNoQueue
	default:
		return nil, fmt.Errorf("pull: %s %s", status, m.Header.Get("Description"))
	}
}

// waitAny waits on all queues at once for one message; nil if none arrives within
// armFor, or the list of queues changes. Further messages go back to the queue at
// once.
func (p *puller) waitAny(ctx context.Context) (*delivery, error) {
	inbox := p.broker.Inbox() + ".pull." + nuid.Next()
	queues, changed := p.lanes.every()
	a := &armed{p: p, queues: queues, got: make(chan *delivery, 1), status: make(chan error, len(queues))}
	sub, err := p.broker.BulkConn().Subscribe(inbox+".*", a.on)
	if err != nil {
		return nil, fmt.Errorf("wait for requests: %w", err)
	}
	defer func() {
		a.close()
		// Messages that the server has already sent are still handled.
		if err := sub.Drain(); err != nil {
			_ = sub.Unsubscribe()
		}
	}()
	body := fmt.Appendf(nil, `{"batch":1,"expires":%d}`, armFor.Nanoseconds())
	for i, q := range queues {
		if err := p.broker.BulkConn().PublishRequest(q.nextSubject(), inbox+"."+strconv.Itoa(i), body); err != nil {
			return nil, fmt.Errorf("wait for requests: %w", err)
		}
	}
	reconnects := p.broker.BulkConn().Stats().Reconnects
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(armFor + time.Second)
	defer end.Stop()
	for {
		select {
		case d := <-a.got:
			return d, nil
		case <-changed:
			return nil, nil
		case err := <-a.status: // a queue's wait is over, or refused
			if errors.Is(err, errNoMessage) {
				return nil, nil
			}
			return nil, err
		case <-tick.C: // after a reconnect the server does not know the pull requests any more
			if p.broker.BulkConn().Stats().Reconnects != reconnects || !p.broker.BulkConn().IsConnected() {
				return nil, nil
			}
		case <-end.C:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// armed handles the messages of one wait on all queues.
type armed struct {
	p      *puller
	queues []*queue
	got    chan *delivery
	status chan error

	mu   sync.Mutex
	over bool
}

func (a *armed) on(m *nats.Msg) {
	d, err := a.p.received(m)
	q := a.queueOf(m, d)
	if q != nil && a.p.isGone(q, err) { // the wait on the other queues goes on
		a.p.lanes.isGone(q)
		return
	}
	if err != nil {
		select {
		case a.status <- err:
		default:
		}
		return
	}
	if a.take(d) {
		if q != nil {
			a.p.lanes.gaveUnasked(q)
		}
		return
	}
	if q != nil {
		a.p.lanes.gave(q) // it has requests
	}
	if err := d.nak(0); err != nil {
		a.p.log.Debug().Err(err).Msg("a request that came too late was not given back")
	}
}

// take hands a message to the waiting slot if no message came before and the wait is not over.
func (a *armed) take(d *delivery) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.over = true
	a.got <- d // there is room; under the lock, so that close finds it
	return true
}

// queueOf returns the queue that an answer came from.
func (a *armed) queueOf(m *nats.Msg, d *delivery) *queue {
	if d != nil { // a message has its own subject
		for _, q := range a.queues {
			if q.stream == d.stream && q.consumer == d.consumer {
				return q
			}
		}
		return nil
	}
	if i, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]); err == nil && i >= 0 && i < len(a.queues) {
		return a.queues[i]
	}
	return nil
}

// close ends the wait and returns a message that was not taken to the queue.
func (a *armed) close() {
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	select {
	case d := <-a.got:
		if err := d.nak(0); err != nil {
			a.p.log.Debug().Err(err).Msg("a request that came too late was not given back")
		}
	default:
	}
}
