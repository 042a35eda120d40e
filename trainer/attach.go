package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/quiet"
	"github.com/turngate/turngate/schema"
)

const (
	// attachEvery is the interval at which this process asks again for the calls of
	// its shard.
	attachEvery = 5 * time.Second
	// attachSoon is the same while it does not have them.
	attachSoon = time.Second
	// silentWithin bounds the wait for a process that does not answer: after 40 s of
	// silence a worker gives its calls to another one.
	silentWithin = time.Minute
	// unattachedFor is the time after which a process without its calls says so.
	unattachedFor = 3 * time.Second
)

// attachment keeps this process attached to its shard, so that it has the shard's calls.
type attachment struct {
	*base
	process   schema.Process // this one
	began     func()         // called when this process has the calls
	attached  atomic.Bool    // this process has the calls
	displaced chan struct{}  // capacity 1: another process may have its place
}

// newAttachment returns the attachment of this process; owner is the name of its State
// file.
func newAttachment(b *base, owner string, began func()) *attachment {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return &attachment{base: b, began: began, displaced: make(chan struct{}, 1), process: schema.Process{
		V: schema.Version, Instance: b.instance, Owner: owner, Shard: b.cfg.Shard, Since: time.Now().UnixMilli(),
		Name: schema.Clip(fmt.Sprintf("%s, process %d on %s", filepath.Base(os.Args[0]), os.Getpid(), host), 300),
	}}
}

// InUseError reports that another process answers the calls of this trainer's shard.
type InUseError struct {
	Trainer string
	Process schema.Process // the other one
	Silent  time.Duration  // since it was last heard; 0: it runs
	Copied  bool           // it has a copy of this one's State file
}

func (e *InUseError) Error() string {
	s := fmt.Sprintf("shard %s of trainer %s is in use by %s", e.Process.Shard, e.Trainer, described(&e.Process))
	if e.Copied {
		s += ", which has a copy of this process's state file"
	}
	if e.Silent > 0 {
		s += fmt.Sprintf(", which was last heard %s ago and does not answer", e.Silent.Round(time.Second))
	}
	return s + ": end that one, give this one another name or shard, or let it take over"
}

// ReplacedError is the reason of the end of a Trainer after another process has taken its
// place.
type ReplacedError struct {
	Trainer string
	Process schema.Process // the other one
	Copied  bool           // it has a copy of this one's State file
}

func (e *ReplacedError) Error() string {
	s := fmt.Sprintf("this process of trainer %s was replaced by %s, which answers the calls of shard %s now", e.Trainer, described(&e.Process), e.Process.Shard)
	if e.Copied {
		s += ": it has a copy of this process's state file"
	}
	return s
}

// described names a process for people.
func described(p *schema.Process) string {
	name := p.Name
	if name == "" {
		name = "process " + p.Instance
	}
	if p.Since == 0 {
		return name
	}
	return name + ", since " + time.UnixMilli(p.Since).Format(time.DateTime)
}

// attach asks for the calls of this trainer's shard. Without a worker there are no
// calls: then keep asks later.
func (a *attachment) attach(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, silentWithin)
	defer cancel()
	var silent *InUseError // the newest
	for {
		err := a.try(within)
		var used *InUseError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &used) && used.Silent == 0:
			return err
		case used == nil && within.Err() == nil:
			a.cfg.Log.Info().Err(err).Msg("this process does not have the calls of its shard yet")
			return nil
		case used != nil && silent == nil:
			a.cfg.Log.Warn().Msg(used.Error() + "; waiting until a worker takes it for dead")
		}
		if used != nil {
			silent = used
		}
		if sleep(within, attachSoon) {
			continue
		}
		err = context.Cause(within)
		if silent != nil {
			err = fmt.Errorf("%w: %w", silent, err)
		}
		return err
	}
}

// try asks once. It takes the place of a process that does not run any more, or
// of any other one with Config.TakeOver.
func (a *attachment) try(ctx context.Context) error {
	ask := schema.Attach{V: schema.Version, Process: a.process}
	var before *schema.Process // that it replaces
	holder, err := a.requests.Processes.Holder(ctx, a.cfg.Shard)
	if err != nil {
		return err
	}
	if holder != nil {
		if !a.cfg.TakeOver {
			return a.inUse(holder, 0)
		}
		ask.Replace, before = holder.Instance, holder
	}
	for {
		got, err := a.requests.Processes.Attach(ctx, &ask)
		if err != nil {
			return err
		}
		other := &got.Process
		if other.Instance == a.instance {
			return a.begin(before)
		}
		if !a.cfg.TakeOver {
			silent := time.Duration(got.SilentMS+1) * time.Millisecond
			runs, known := a.requests.Processes.Runs(ctx, other.Instance, silent)
			switch {
			case runs:
				return a.inUse(other, 0)
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case !known:
				return a.inUse(other, silent)
			}
		}
		ask.Replace, before = other.Instance, other
	}
}

func (a *attachment) inUse(by *schema.Process, silent time.Duration) *InUseError {
	return &InUseError{Trainer: a.cfg.Name, Process: *by, Silent: silent, Copied: by.SameOwner(&a.process)}
}

// begin begins the answers of a process that has its shard. It may have the place of
// another one, which ran or died.
func (a *attachment) begin(before *schema.Process) error {
	stop, err := a.requests.Processes.Holds(&a.process)
	if err != nil {
		return err
	}
	a.bg.Go(func() {
		<-a.life.Done()
		stop()
		a.leave()
	})
	a.attached.Store(true)
	if before != nil {
		a.cfg.Log.Warn().Str("replaced", before.Instance).Msg("this process has the place of another one, which ran or did not end by itself: " + described(before))
		if err := a.requests.Processes.Displaced(before.Instance); err != nil { // it asks again by itself
			a.cfg.Log.Debug().Err(err).Msg("the other process got no message that it is replaced")
		}
	}
	a.bg.Go(a.began)
	return nil
}

// leave gives the shard up, so that the next process need not ask whether this one runs.
func (a *attachment) leave() {
	if !a.cfg.Broker.Connected() {
		return
	}
	if err := a.requests.Processes.Leave(a.process); err != nil {
		a.cfg.Log.Debug().Err(err).Msg("the next process asks whether this one runs")
	}
}

// keep asks again and again. It ends the trainer if another process has its
// place.
func (a *attachment) keep() {
	began := time.Now()
	var lines quiet.Lines
	for {
		wait := attachEvery
		if !a.attached.Load() {
			wait = attachSoon
		}
		select {
		case <-a.life.Done():
			return
		case <-a.displaced:
		case <-time.After(wait):
		}
		var err error
		if a.attached.Load() {
			err = a.renew()
		} else {
			err = a.late(began, &lines)
		}
		if err != nil {
			a.cfg.Log.Error().Msg(err.Error())
			a.stop(err)
			return
		}
	}
}

// late asks for the calls that this process does not have since it began. It
// returns an error if another process that runs has them.
func (a *attachment) late(began time.Time, lines *quiet.Lines) error {
	err := a.try(a.life)
	var used *InUseError
	switch {
	case err == nil:
		a.cfg.Log.Info().Msg("this process has the calls of its shard")
		return nil
	case errors.As(err, &used) && used.Silent == 0:
		return err
	case a.life.Err() != nil || time.Since(began) < unattachedFor:
		return nil
	}
	if _, speak := lines.Speak(err.Error(), time.Now()); speak {
		a.cfg.Log.Warn().Err(err).Msg("this process does not have the calls of its shard, and answers none")
	}
	return nil
}

// renew renews. It returns an error if another process has the calls.
func (a *attachment) renew() error {
	got, err := a.requests.Processes.Attach(a.life, &schema.Attach{V: schema.Version, Process: a.process})
	switch {
	case err != nil: // no worker, or no server: no other process can have them
		if !errors.Is(err, queue.ErrNoWorker) {
			a.cfg.Log.Debug().Err(err).Msg("this process could not ask again for its calls")
		}
		return nil
	case got.Process.Instance != a.instance:
		return &ReplacedError{Trainer: a.cfg.Name, Process: got.Process, Copied: got.Process.SameOwner(&a.process)}
	}
	return nil
}
