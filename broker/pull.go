package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/turngate/turngate/subjects"
)

// lanes polls the queue's consumers: most often the most urgent, but none
// never.
type lanes struct {
	mu    sync.Mutex
	all   []lane
	empty []time.Time // when each was last seen empty
}

type lane struct {
	consumer string
	weight   int
	credit   int
}

// The weights of p0 to p3. A full lane p0 leaves every fifteenth poll to a
// full lane p3.
var laneWeights = [subjects.Lanes]int{8, 4, 2, 1} //nolint:gochecknoglobals // a constant table

const (
	armFor    = 10 * time.Second
	staleLane = 100 * time.Millisecond // how long a lane that was empty is not asked again while others are not
)

func newLanes() *lanes {
	l := &lanes{}
	for _, filter := range subjects.RequestFilters() {
		l.all = append(l.all, lane{consumer: subjects.ConsumerOf(filter), weight: laneWeights[subjects.LaneOf(filter)]})
	}
	l.empty = make([]time.Time, len(l.all))
	return l
}

// order lists the lanes in the order in which they are asked now: first the
// one whose turn it is (smooth weighted round robin), then the others as they
// come. Lanes that were just empty come last.
func (l *lanes) order() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, total := -1, 0
	now := time.Now()
	var out, late []int
	for i := range l.all {
		if now.Sub(l.empty[i]) < staleLane {
			late = append(late, i)
			continue
		}
		l.all[i].credit += l.all[i].weight
		total += l.all[i].weight
		if first < 0 || l.all[i].credit > l.all[first].credit {
			first = i
		}
	}
	if first >= 0 {
		l.all[first].credit -= total
		out = append(out, first)
	}
	for i := range l.all {
		if i != first && now.Sub(l.empty[i]) >= staleLane {
			out = append(out, i)
		}
	}
	return append(out, late...)
}

func (l *lanes) wasEmpty(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.empty[i] = time.Now()
}

func nextSubject(consumer string) string {
	return "$JS.API.CONSUMER.MSG.NEXT." + subjects.StreamRequests + "." + consumer
}

// errNoMessage means that a lane is empty.
var errNoMessage = errors.New("no message")

// poller asks one lane after the other. It has a subscription of its own: a
// message from a stream carries its own subject, so that the client's shared
// inbox for replies could not tell whose it is.
type poller struct {
	inbox string
	sub   *nats.Subscription
	// got has room for what the server answers to one asking. The client's own
	// channel would take half a MB in each of a worker's slots.
	got chan *nats.Msg
}

// poll asks every lane once for what is there now; nil when all are empty.
func (w *WorkerSide) poll(ctx context.Context) (*delivery, error) {
	p, err := w.poller()
	if err != nil {
		return nil, err
	}
	for _, i := range w.lanes.order() {
		m, err := p.ask(ctx, w.bulk, w.lanes.all[i].consumer)
		if err != nil { // whatever answer is still on its way must not be taken for another's
			_ = p.sub.Unsubscribe()
			return nil, fmt.Errorf("pull from %s: %w", w.lanes.all[i].consumer, err)
		}
		d, err := w.received(m)
		if errors.Is(err, errNoMessage) {
			w.lanes.wasEmpty(i)
			continue
		}
		w.free(p)
		return d, err
	}
	w.free(p)
	return nil, nil
}

func (w *WorkerSide) free(p *poller) {
	select {
	case w.pollers <- p:
	default:
		_ = p.sub.Unsubscribe()
	}
}

// poller gives a poller that is free, or a new one.
func (w *WorkerSide) poller() (*poller, error) {
	select {
	case p := <-w.pollers:
		return p, nil
	default:
	}
	p := &poller{inbox: w.inbox + ".poll." + nuid.Next(), got: make(chan *nats.Msg, 8)}
	var err error
	if p.sub, err = w.bulk.ChanSubscribe(p.inbox, p.got); err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	return p, nil
}

func (p *poller) ask(ctx context.Context, nc *nats.Conn, consumer string) (*nats.Msg, error) {
	if err := nc.PublishRequest(nextSubject(consumer), p.inbox, []byte(`{"batch":1,"no_wait":true}`)); err != nil {
		return nil, err
	}
	// Not the caller's context: an answer that nobody takes is a request that
	// nobody runs for a whole ack wait.
	op, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	select {
	case m := <-p.got:
		return m, nil
	case <-op.Done():
		return nil, context.Cause(op)
	}
}

// received tells a message from a status.
func (w *WorkerSide) received(m *nats.Msg) (*delivery, error) {
	status := m.Header.Get("Status")
	switch {
	case status == "" || len(m.Data) > 0:
		return newDelivery(w.bulk, m.Subject, m.Reply, m.Data)
	case status == "404" || status == "408":
		return nil, errNoMessage
	default:
		return nil, fmt.Errorf("pull: %s %s", status, m.Header.Get("Description"))
	}
}

// arm waits on all lanes at once for one message; nil when none came for a
// while. What arrives beyond the one goes back at once.
func (w *WorkerSide) arm(ctx context.Context) (*delivery, error) {
	inbox := w.inbox + ".pull." + nuid.Next()
	a := &armed{w: w, got: make(chan *delivery, 1), status: make(chan error, len(w.lanes.all))}
	sub, err := w.bulk.Subscribe(inbox+".*", a.on)
	if err != nil {
		return nil, fmt.Errorf("wait for requests: %w", err)
	}
	defer func() {
		a.close()
		// What the server sent before it heard of the end is still handled.
		if err := sub.Drain(); err != nil {
			_ = sub.Unsubscribe()
		}
	}()
	body := fmt.Appendf(nil, `{"batch":1,"expires":%d}`, armFor.Nanoseconds())
	for i, l := range w.lanes.all {
		if err := w.bulk.PublishRequest(nextSubject(l.consumer), inbox+"."+strconv.Itoa(i), body); err != nil {
			return nil, fmt.Errorf("wait for requests: %w", err)
		}
	}
	reconnects := w.bulk.Stats().Reconnects
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(armFor + time.Second)
	defer end.Stop()
	for {
		select {
		case d := <-a.got:
			return d, nil
		case d := <-w.handed:
			return d, nil
		case err := <-a.status: // a lane's wait is over, or refused
			if errors.Is(err, errNoMessage) {
				return nil, nil
			}
			return nil, err
		case <-tick.C: // a server that came back knows nothing of the wait
			if w.bulk.Stats().Reconnects != reconnects || !w.bulk.IsConnected() {
				return nil, nil
			}
		case <-end.C:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// armed takes what a wait on all lanes brings.
type armed struct {
	w      *WorkerSide
	got    chan *delivery
	status chan error

	mu   sync.Mutex
	over bool
}

func (a *armed) on(m *nats.Msg) {
	d, err := a.w.received(m)
	if err != nil {
		select {
		case a.status <- err:
		default:
		}
		return
	}
	a.mu.Lock()
	take := !a.over
	a.over = true
	a.mu.Unlock()
	if take {
		a.got <- d
		return
	}
	if err := d.again(0); err != nil {
		a.w.log.Debug().Err(err).Msg("a request that came too late was not given back")
	}
}

// close gives back what came after the wait had ended.
func (a *armed) close() {
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	select {
	case d := <-a.got:
		if err := d.again(0); err != nil {
			a.w.log.Debug().Err(err).Msg("a request that came too late was not given back")
		}
	default:
	}
}

// pull waits for one request.
func (w *WorkerSide) pull(ctx context.Context) (*delivery, error) {
	for {
		if err := w.standing.wait(ctx); err != nil { // takes nothing while its own lease is in doubt
			return nil, err
		}
		select {
		case d := <-w.handed:
			return d, nil
		default:
		}
		if !w.bulk.IsConnected() {
			if err := pause(ctx, 250*time.Millisecond); err != nil {
				return nil, err
			}
			continue
		}
		d, err := w.poll(ctx)
		if d != nil || err != nil {
			return d, err
		}
		// One slot waits for all: each wait holds places in five queues.
		select {
		case w.idle <- struct{}{}:
		case d := <-w.handed:
			return d, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		d, err = w.arm(ctx)
		<-w.idle
		if d != nil || err != nil {
			return d, err
		}
	}
}
