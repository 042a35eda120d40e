package gate

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// client is the request that is attached to an exchange. A goroutine that
// changes the exchange writes to the client itself, so that no other goroutine
// has to wake up.
type client struct {
	x    *exchange
	w    http.ResponseWriter
	rc   *http.ResponseController
	d    dialect.Dialect
	meta dialect.Meta
	done chan struct{} // closed when nothing more is written

	request context.Context // ends when the client goes away
	ended   sync.Once

	mu     sync.Mutex     // held while something is written
	stream dialect.Stream // nil: the whole answer at once
	opened bool           // headers are sent
	sent   int            // deltas written
	over   bool           // nothing is written any more
	whole  bool           // the whole answer was written

	// Guarded by the lock of clientTimers.
	timer int       // index in clientTimers.clients
	due   time.Time // time of the next keep-alive
}

// answer writes the exchange to a request. The request that began the exchange
// also runs it, to its end: if its client goes away, another may come for the
// answer.
func (x *exchange) answer(w http.ResponseWriter, r *http.Request, d dialect.Dialect, fresh bool) {
	now := time.Now()
	c := &client{x: x, w: w, d: d, rc: http.NewResponseController(w), done: make(chan struct{}), request: r.Context(), due: now.Add(x.s.cfg.Timing.Headers), meta: dialect.Meta{
		ID: strings.ReplaceAll(x.call.Key, "/", "-"), Model: x.call.Model, Created: now.Unix(),
	}}
	if x.call.Stream {
		c.stream = x.encoding.Stream(c.meta)
	}
	delivery, tracked := sandboxes.DeliveryFrom(c.request)
	if tracked {
		delivery.OnSettled(c.end)
	}
	c.join()
	if fresh {
		x.run()
	}
	<-c.done
	x.s.timers.remove(c)
	if !c.leave() || c.request.Err() != nil {
		c.end(false)
	} else if !tracked {
		c.end(true)
	}
}

// end notes whether the answer was delivered. Only the first call counts.
func (c *client) end(delivered bool) {
	c.ended.Do(func() {
		if delivered {
			c.x.commit()
		}
		c.x.detach(delivered)
	})
}

// gone cleans up after a client that went away.
func (c *client) gone() {
	c.leave()
	c.end(false)
}

// join attaches the client to the exchange and writes the deltas so far.
func (c *client) join() {
	c.x.mu.Lock()
	c.x.client = c
	c.x.mu.Unlock()
	c.x.s.timers.add(c)
	c.push(false)
}

// setDeadline sets a deadline for writes to the client.
func (c *client) setDeadline() {
	_ = c.rc.SetWriteDeadline(time.Now().Add(lastWrite)) // some writers have no deadlines
}

// lastWrite is the time that an agent has to read the rest after its session's
// end.
const lastWrite = 5 * time.Second

// leave ends writing to the client and reports whether everything was written.
func (c *client) leave() (whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop(false)
	return c.whole
}

// stop ends writing. The caller holds the lock.
func (c *client) stop(whole bool) {
	if !c.over {
		c.over, c.whole = true, whole
		close(c.done)
	}
}

// push writes the news of the exchange. With more, further deltas follow at
// once.
func (c *client) push(more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	if done, err := c.step(more); done || err != nil {
		c.stop(err == nil)
	}
}

// step does the work of push. The caller holds the lock.
func (c *client) step(more bool) (done bool, err error) {
	x := c.x
	x.mu.Lock()
	deltas := x.deltas[min(c.sent, len(x.deltas)):]
	finished, reply, failed := x.finished, &x.reply, x.err
	if c.stream != nil && len(deltas) > 0 {
		x.released = true
	}
	x.mu.Unlock()
	if c.stream != nil {
		for _, d := range deltas {
			chunk, err := c.stream.Delta(d)
			if err != nil {
				x.encodeFailed(err)
				return true, c.fail(err)
			}
			if err := c.put(chunk); err != nil {
				return false, err
			}
			c.sent++
		}
	}
	switch {
	case finished && failed != nil:
		return true, c.fail(failed)
	case finished:
		return true, c.final(reply)
	case len(deltas) > 0 && c.stream != nil && !more:
		return false, c.rc.Flush()
	default:
		return false, nil
	}
}

func (c *client) open() {
	if c.opened {
		return
	}
	c.opened = true
	h := c.w.Header()
	if c.stream != nil {
		h.Set("Content-Type", c.stream.ContentType())
		h.Set("Cache-Control", "no-cache")
	} else {
		h.Set("Content-Type", "application/json")
	}
	c.w.WriteHeader(http.StatusOK)
}

func (c *client) put(b []byte) error {
	c.open()
	_, err := c.w.Write(b)
	return err
}

// keepAlive sends the headers if they are due, and a keep-alive, unless another
// write is in progress.
func (c *client) keepAlive() {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if c.over {
		return
	}
	sign := []byte(" ")
	if c.stream != nil {
		sign = c.stream.KeepAlive()
	}
	if c.put(sign) != nil || c.rc.Flush() != nil {
		c.stop(false)
	}
}

func (c *client) final(reply *schema.Reply) error {
	var out []byte
	var err error
	if c.stream != nil {
		out, err = c.stream.Final(reply)
	} else {
		out, err = c.x.encoding.Encode(c.meta, reply)
	}
	if err != nil {
		c.x.encodeFailed(err)
		return c.fail(err)
	}
	return c.put(out)
}

// fail writes an error: with its status before the headers are sent, in the
// body or the stream afterwards.
func (c *client) fail(err error) error {
	f := refusalOf(err)
	if !c.opened {
		refuse(c.w, c.d, f)
		c.opened = true
		return nil
	}
	if c.stream != nil {
		return c.put(c.stream.Fail(f))
	}
	return c.put(c.d.Fail(f))
}
