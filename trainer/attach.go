package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// ReplacedError is the reason of the end of a Trainer whose place another process has
// taken.
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

// thisProcess describes this process.
func (t *Trainer) thisProcess() schema.Process {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return schema.Process{
		V: schema.Version, Instance: t.instance, Owner: t.ledger.owner, Shard: t.cfg.Shard, Since: time.Now().UnixMilli(),
		Name: schema.Clip(fmt.Sprintf("%s, process %d on %s", filepath.Base(os.Args[0]), os.Getpid(), host), 300),
	}
}

// attach asks for the calls of this trainer's shard. Without a worker there are no
// calls: then keepAttached asks later.
func (t *Trainer) attach(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, silentWithin)
	defer cancel()
	var silent *InUseError // the newest
	for {
		err := t.tryAttach(within)
		var used *InUseError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &used) && used.Silent == 0:
			return err
		case used == nil && within.Err() == nil:
			t.cfg.Log.Info().Err(err).Msg("this process does not have the calls of its shard yet")
			return nil
		case used != nil && silent == nil:
			t.cfg.Log.Warn().Msg(used.Error() + "; waiting until a worker takes it for dead")
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

// tryAttach asks once. It takes the place of a process that does not run any more, or
// of any other one with Config.TakeOver.
func (t *Trainer) tryAttach(ctx context.Context) error {
	ask := schema.Attach{V: schema.Version, Process: t.process}
	holder, err := t.requests.Processes.Holder(ctx, t.cfg.Shard)
	if err != nil {
		return err
	}
	if holder != nil {
		if !t.cfg.TakeOver {
			return t.inUse(holder, 0)
		}
		ask.Replace = holder.Instance
	}
	for {
		got, err := t.requests.Processes.Attach(ctx, &ask)
		if err != nil {
			return err
		}
		other := &got.Process
		if other.Instance == t.instance {
			return t.hasAttached(ask.Replace)
		}
		if !t.cfg.TakeOver {
			silent := time.Duration(got.SilentMS+1) * time.Millisecond
			runs, known := t.requests.Processes.Runs(ctx, other.Instance, silent)
			switch {
			case runs:
				return t.inUse(other, 0)
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case !known:
				return t.inUse(other, silent)
			}
		}
		t.cfg.Log.Info().Msg("taking the place of " + described(other))
		ask.Replace = other.Instance
	}
}

func (t *Trainer) inUse(by *schema.Process, silent time.Duration) *InUseError {
	return &InUseError{Trainer: t.cfg.Name, Process: *by, Silent: silent, Copied: by.SameOwner(&t.process)}
}

// hasAttached begins the answers of a process that has its shard, and its look for
// orphans. It may have the place of another one.
func (t *Trainer) hasAttached(replaced string) error {
	stop, err := t.requests.Processes.Holds(&t.process)
	if err != nil {
		return err
	}
	t.bg.Go(func() {
		<-t.life.Done()
		stop()
	})
	t.attached.Store(true)
	if replaced != "" {
		t.cfg.Log.Warn().Str("replaced", replaced).Msg("this process has the place of another one of this trainer")
		if err := t.requests.Processes.Displaced(replaced); err != nil { // it asks again by itself
			t.cfg.Log.Debug().Err(err).Msg("the other process was not told")
		}
	}
	t.bg.Go(t.lookForOrphans)
	return nil
}

// keepAttached asks again and again. It ends the trainer if another process has its
// place.
func (t *Trainer) keepAttached() {
	began := time.Now()
	var lines quiet.Lines
	for {
		wait := attachEvery
		if !t.attached.Load() {
			wait = attachSoon
		}
		select {
		case <-t.life.Done():
			return
		case <-t.displaced:
		case <-time.After(wait):
		}
		var err error
		if t.attached.Load() {
			err = t.attachAgain()
		} else {
			err = t.attachLate(began, &lines)
		}
		if err != nil {
			t.cfg.Log.Error().Msg(err.Error())
			t.stop(err)
			return
		}
	}
}

// attachLate asks for the calls that this process does not have since it began. It
// returns an error if another process that runs has them.
func (t *Trainer) attachLate(began time.Time, lines *quiet.Lines) error {
	err := t.tryAttach(t.life)
	var used *InUseError
	switch {
	case err == nil:
		t.cfg.Log.Info().Msg("this process has the calls of its shard")
		return nil
	case errors.As(err, &used) && used.Silent == 0:
		return err
	case t.life.Err() != nil || time.Since(began) < unattachedFor:
		return nil
	}
	if _, speak := lines.Speak(err.Error(), time.Now()); speak {
		t.cfg.Log.Warn().Err(err).Msg("this process does not have the calls of its shard, and answers none")
	}
	return nil
}

// attachAgain renews. It returns an error if another process has the calls.
func (t *Trainer) attachAgain() error {
	got, err := t.requests.Processes.Attach(t.life, &schema.Attach{V: schema.Version, Process: t.process})
	switch {
	case err != nil: // no worker, or no server: nobody else can have them
		if !errors.Is(err, queue.ErrNoWorker) {
			t.cfg.Log.Debug().Err(err).Msg("this process could not ask again for its calls")
		}
		return nil
	case got.Process.Instance != t.instance:
		return &ReplacedError{Trainer: t.cfg.Name, Process: got.Process, Copied: got.Process.SameOwner(&t.process)}
	}
	return nil
}
