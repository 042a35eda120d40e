package queue

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// A request that this worker cannot run now is parked: it is moved within its
// trainer's queue from the lane to a class, which has a consumer of its own. So it
// delays no other request, and only workers that can run it pull it from there.
// The copy is stored before the original is acknowledged. If both exist for a
// while, the state record decides as for every duplicate.

// maxClasses bounds the classes of one trainer. Each is a consumer.
const maxClasses = 32

// metaNeeds is a key of the metadata of a class's consumer: the needs of its
// requests, in JSON.
const metaNeeds = "turngate.needs"

// classOf names the class of requests with these needs, in a lane. meta is the
// metadata of its consumer.
func classOf(lane int, n schema.Needs) (c class, meta string, err error) {
	data, err := json.Marshal(n)
	if err != nil {
		return class{}, "", fmt.Errorf("name the class of %+v: %w", n, err)
	}
	sum := sha256.Sum256(data)
	return class{lane, hex.EncodeToString(sum[:10])}, string(data), nil
}

// queued is a class of parked requests as the server has it.
type queued struct {
	class
	needs   schema.Needs // none for subjects.ClassDelay
	waiting uint64       // number of its requests
}

// classes lists the classes of a trainer's queue. waiting is the number of requests
// in them and in the lanes.
func (b *base) classes(ctx context.Context, s jetstream.Stream) (all []queued, waiting uint64, err error) {
	list := s.ListConsumers(ctx)
	for info := range list.Info() {
		lane, name, ok := subjects.ParseConsumer(info.Name)
		if !ok {
			continue
		}
		c := queued{class: class{lane, name}, waiting: info.NumPending + uint64(info.NumAckPending)}
		if name != "" && name != subjects.ClassDelay {
			if c.needs, err = needsOf(info.Config); err != nil {
				b.log.Warn().Err(err).Str("stream", info.Stream).Str("consumer", info.Name).Msg("the needs of a class cannot be read")
				continue
			}
		}
		waiting += c.waiting
		if name != "" {
			all = append(all, c)
		}
	}
	if err := list.Err(); err != nil && !errors.Is(err, jetstream.ErrEndOfData) {
		return nil, 0, fmt.Errorf("list the consumers of %s: %w", s.CachedInfo().Config.Name, broker.Reach(err))
	}
	slices.SortFunc(all, func(a, b queued) int { return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.name, b.name)) })
	return all, waiting, nil
}

// needsOf reads the needs of a class from the metadata of its consumer.
func needsOf(c jetstream.ConsumerConfig) (n schema.Needs, err error) {
	err = json.Unmarshal([]byte(c.Metadata[metaNeeds]), &n)
	return n, rawjson.Plain(err)
}

// parking settles the messages of requests that a worker cannot run now.
type parking struct {
	*base
	resolver *resolver
	requests *requests
	fleet    *fleet
	unfit    unfit
}

// setAside settles a message of a request that this worker cannot run now. It
// returns false if the worker can run it.
func (p *parking) setAside(ctx context.Context, d *delivery, req *schema.Request) (bool, error) {
	if delayed, err := p.delay(ctx, d, req); delayed || err != nil {
		return true, err
	}
	lacks := p.lacks(req)
	if lacks == nil {
		return false, nil
	}
	if in := d.class(); in == "" || in == subjects.ClassDelay {
		to, meta, err := classOf(subjects.LaneOf(d.subject), req.Needs())
		if err != nil {
			return true, err
		}
		if parked, err := p.park(ctx, d, req, to, meta); parked || err != nil {
			return true, err
		}
	}
	return true, p.pass(ctx, d, req, lacks)
}

// delay settles the first delivery of a message with a delay. It returns false if the
// request has waited. So has a rollout with a state: it has begun before, and the
// janitor has published its request again.
func (p *parking) delay(ctx context.Context, d *delivery, req *schema.Request) (bool, error) {
	wait := time.Duration(req.DelayMS) * time.Millisecond
	if wait == 0 || d.delivered > 1 {
		return false, nil
	}
	switch d.class() {
	case "":
		state, err := p.broker.Messages.Last(ctx, subjects.Records(req.Trainer), subjects.State(req.ID))
		if err == nil && state != nil { // after an error it rather waits again than begins too early
			return false, nil
		}
		parked, err := p.park(ctx, d, req, class{subjects.LaneOf(d.subject), subjects.ClassDelay}, "")
		if err == nil && !parked {
			err = d.nak(wait)
		}
		return true, err
	case subjects.ClassDelay:
		return true, d.nak(wait)
	default:
		return false, nil
	}
}

// park moves a message to a class, or settles it if a worker has claimed it since. It
// returns false if the message stays: the trainer's queue has no room for the copy, or
// the trainer is full or has too many classes.
func (p *parking) park(ctx context.Context, d *delivery, req *schema.Request, to class, meta string) (bool, error) {
	known, room := p.resolver.roster.has(req.Trainer, to)
	if !known && !room || p.resolver.roster.full(req.Trainer) { // no worker takes parked requests of a full trainer
		return false, nil
	}
	if d.delivered > 1 { // a worker may have claimed it
		m := p.resolver.aboutMessage(d, req, askPark)
		s, err := p.resolver.resolve(ctx, m)
		if err == nil && s != stepPark {
			err = p.requests.settle(ctx, m, s)
		}
		if err != nil || s != stepPark {
			return true, err
		}
	}
	if !known { // so that a copy always has a consumer
		if made, err := p.resolver.roster.addClass(ctx, req.Trainer, to, meta); !made || err != nil {
			return err != nil, err
		}
	}
	crash.Here("park.before")
	copied := d.copied(subjects.Parked(to.lane, to.name, req.ID), nats.Header{wire.HeaderExpect: {"0"}})
	switch _, err := p.broker.Messages.PutMsg(ctx, copied); {
	case broker.IsFull(err):
		return false, nil
	case errors.Is(err, broker.ErrMoved): // the copy exists, or is being stored
		m, err := p.broker.Messages.Last(ctx, subjects.Queue(req.Trainer), copied.Subject)
		if m == nil || err != nil {
			return true, cmp.Or(err, fmt.Errorf("park %s: %w", req.ID, broker.ErrMoved))
		}
	case err != nil:
		return true, fmt.Errorf("park %s: %w", req.ID, err)
	}
	if _, err := p.resolver.roster.ensureClass(ctx, req.Trainer, to, meta); err != nil { // the stream may have been made again
		return true, err
	}
	crash.Here("park.copied")
	p.cfg.Metrics.Parked(to.name == subjects.ClassDelay)
	return true, d.forget()
}

// pass returns a request that this worker cannot run, and that it could not park,
// to the queue with a growing delay. If no worker has offered its needs for
// Timing.NoCapable, the rollout fails.
func (p *parking) pass(ctx context.Context, d *delivery, req *schema.Request, lacks error) error {
	all, err := p.fleet.list(ctx)
	if err != nil {
		return err
	}
	later := p.timing.Unfit << min(d.delivered-1, 2)
	if able(all, req) {
		p.unfit.forget(req.ID)
		return d.nak(later)
	}
	if waited := p.unfit.since(req, p.timing); waited < p.timing.NoCapable {
		return d.nak(min(later, p.timing.NoCapable-waited))
	}
	fleet, needs := schema.FleetOf(all), req.Needs()
	return p.requests.refuse(ctx, d, req, cmp.Or(fleet.Unable(&needs), fmt.Sprintf("no worker is there that can run it: %v", lacks)))
}

// parked returns the parked message of a rollout; nil: none.
func parked(ctx context.Context, from *broker.Messages, id schema.ID) (*jetstream.RawStreamMsg, error) {
	return from.Last(ctx, subjects.Queue(id.Trainer()), subjects.ParkedOf(id))
}

// has reports whether a trainer has a class, and whether it may get one more.
func (r *roster) has(tid string, c class) (known, room bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pools[tid]
	if p == nil {
		return false, true
	}
	_, known = p.classes[c]
	return known, c.name == subjects.ClassDelay || len(p.classes) < maxClasses
}

// addClass makes the consumer of a class, one at a time. It returns false if the
// trainer has too many classes by now.
func (r *roster) addClass(ctx context.Context, tid string, c class, meta string) (bool, error) {
	r.adding.Lock()
	defer r.adding.Unlock()
	if known, room := r.has(tid, c); !known && !room {
		return false, nil
	}
	_, err := r.ensureClass(ctx, tid, c, meta)
	return true, err
}

// ensureClass makes the consumer of a class if it does not exist, and writes its
// metadata again if no worker can read it. made is false if nothing was missing.
func (r *roster) ensureClass(ctx context.Context, tid string, c class, meta string) (made bool, err error) {
	stream, name := subjects.Queue(tid), subjects.ConsumerOfClass(c.lane, c.name)
	is, err := r.broker.JetStream().Consumer(ctx, stream, name)
	if err == nil {
		if _, err := needsOf(is.CachedInfo().Config); err == nil || c.name == subjects.ClassDelay {
			return false, nil
		}
	} else if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return false, fmt.Errorf("look for the consumer %s of %s: %w", name, stream, broker.Reach(err))
	}
	consumer, err := r.broker.Streams.ConsumerConfig(ctx, name, subjects.ClassFilter(c.lane, tid, c.name), r.timing)
	if err != nil {
		return false, err
	}
	if c.name == subjects.ClassDelay {
		consumer.MaxAckPending = -1 // all of them wait for their redelivery; the queue has its own bounds
	} else {
		consumer.Metadata = map[string]string{metaNeeds: meta}
	}
	if _, err := r.broker.JetStream().CreateOrUpdateConsumer(ctx, stream, consumer); err != nil {
		return false, fmt.Errorf("make the consumer %s of %s: %w", name, stream, broker.Reach(err))
	}
	r.learn(tid, c, consumer.Metadata[metaNeeds])
	r.broker.Trainers.Announce(tid)
	return true, nil
}

// learn adds a new class to the known ones before the list is read again.
func (r *roster) learn(tid string, c class, meta string) {
	var n schema.Needs
	if err := json.Unmarshal([]byte(meta), &n); err != nil && meta != "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pools[tid]; p != nil {
		now := *p
		now.classes = maps.Clone(p.classes)
		now.classes[c] = n
		r.pools[tid] = &now
	}
}
