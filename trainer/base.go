package trainer

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/schema"
)

// base has the connection, settings and lifetime of a trainer, which all parts of it
// share. A lock is taken inside another one only in this order: adopter, holds, handout or
// a call's state, then rollouts or outstanding, then slots, hints, ledger or conversations.
type base struct {
	requests *queue.Trainer
	server   *modelcall.Server
	cfg      Config
	instance string // random name of this process
	life     context.Context
	stop     context.CancelCauseFunc

	entering sync.Mutex     // held while enter looks at life and adds to bg
	bg       sync.WaitGroup // Close waits for it
}

func newBase(c Config) (*base, error) {
	requests, err := queue.NewTrainer(c.Broker, c.Name)
	if err != nil {
		return nil, err
	}
	server, err := modelcall.NewServer(c.Broker, c.Name)
	if err != nil {
		return nil, err
	}
	b := &base{requests: requests, server: server, cfg: c, instance: newInstance()}
	b.life, b.stop = context.WithCancelCause(context.Background())
	return b, nil
}

// newInstance returns a random name.
func newInstance() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// enter begins work that Close waits for, until the caller calls bg.Done. It returns
// false after the end of life.
func (b *base) enter() bool {
	b.entering.Lock()
	defer b.entering.Unlock()
	if b.life.Err() != nil {
		return false
	}
	b.bg.Add(1)
	return true
}

// end ends life. After it enter adds nothing to bg.
func (b *base) end(cause error) {
	b.entering.Lock()
	defer b.entering.Unlock()
	b.stop(cause)
}

// every runs the function do once per interval until the end of life.
func (b *base) every(d time.Duration, do func()) {
	b.bg.Go(func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-b.life.Done():
				return
			case <-tick.C:
				do()
			}
		}
	})
}

// lane returns the lane of submitted rollouts.
func (b *base) lane() int {
	if b.cfg.Lane != nil {
		return *b.cfg.Lane
	}
	return 2
}

// mine returns a request in the name of this trainer, with the shard of this process
// if it has none.
func (b *base) mine(r schema.Request) schema.Request {
	r.Trainer = b.cfg.Name
	if b.cfg.Shard != schema.DefaultShard { // the default needs no field
		r.Shard = cmp.Or(r.Shard, b.cfg.Shard)
	}
	r.Process = ""
	if b.cfg.State == "" && b.ofThisShard(&r) { // the next process of another shard may not be this one's
		r.Process = b.instance
	}
	return r
}

func (b *base) ofThisShard(r *schema.Request) bool { return shardOf(r) == b.cfg.Shard }

// shardOf returns the shard of the process that submitted or adopted a rollout.
func shardOf(r *schema.Request) string { return cmp.Or(r.Shard, schema.DefaultShard) }

// wake sends on a channel of capacity 1 without blocking.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep reports whether the context lasted that long.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
