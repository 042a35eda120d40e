package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/turngate/turngate/internal/broker/queue"
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
)

// InUseError reports that another process answers the calls of this trainer's shard.
type InUseError struct {
	Trainer string
	Process schema.Process // the other one
	Silent  time.Duration  // since it was last heard; 0: it runs
}

func (e *InUseError) Error() string {
	s := fmt.Sprintf("shard %s of trainer %s is in use by %s", e.Process.Shard, e.Trainer, described(&e.Process))
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
}

func (e *ReplacedError) Error() string {
	return fmt.Sprintf("this process of trainer %s was replaced by %s, which answers the calls of shard %s now", e.Trainer, described(&e.Process), e.Process.Shard)
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
	ctx, cancel := context.WithTimeout(ctx, silentWithin)
	defer cancel()
	for told := false; ; {
		err := t.tryAttach(ctx)
		var used *InUseError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &used) && used.Silent == 0:
			return err
		case used == nil:
			t.cfg.Log.Info().Err(err).Msg("this process does not have the calls of its shard yet")
			return nil
		}
		if !told {
			told = true
			t.cfg.Log.Warn().Msg(used.Error() + "; waiting until a worker takes it for dead")
		}
		if !sleep(ctx, attachSoon) {
			return err
		}
	}
}

// tryAttach asks once. It takes the place of a process that does not run any more, or
// of any other one with Config.TakeOver.
func (t *Trainer) tryAttach(ctx context.Context) error {
	ask := schema.Attach{V: schema.Version, Process: t.process}
	for {
		got, err := t.requests.Processes.Attach(ctx, &ask)
		if err != nil {
			return err
		}
		other := &got.Process
		if other.Instance == t.instance {
			if ask.Replace != "" {
				t.cfg.Log.Warn().Str("replaced", ask.Replace).Msg("this process has the place of another one of this trainer")
				return errors.Join(t.requests.Processes.Displaced(ask.Replace), t.hasAttached())
			}
			return t.hasAttached()
		}
		if !t.cfg.TakeOver {
			runs, known := t.requests.Processes.Runs(ctx, other.Instance)
			if runs || !known {
				e := &InUseError{Trainer: t.cfg.Name, Process: *other}
				if !runs {
					e.Silent = time.Duration(got.SilentMS+1) * time.Millisecond
				}
				return e
			}
		}
		t.cfg.Log.Info().Msg("taking the place of " + described(other))
		ask.Replace = other.Instance
	}
}

func (t *Trainer) hasAttached() error {
	t.attached.Store(true)
	return nil
}

// keepAttached asks again and again. It ends the trainer if another process has its
// place.
func (t *Trainer) keepAttached() {
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
		if err := t.attachAgain(); err != nil {
			t.cfg.Log.Error().Msg(err.Error())
			t.stop(err)
			return
		}
	}
}

// attachAgain returns an error if another process has the calls.
func (t *Trainer) attachAgain() error {
	if !t.attached.Load() {
		err := t.tryAttach(t.life)
		var used *InUseError
		if errors.As(err, &used) && used.Silent == 0 {
			return err
		}
		if err == nil {
			err = t.findOrphansIfAttached(t.life)
		}
		if err != nil {
			t.cfg.Log.Debug().Err(err).Msg("this process does not have the calls of its shard yet")
		}
		return nil
	}
	got, err := t.requests.Processes.Attach(t.life, &schema.Attach{V: schema.Version, Process: t.process})
	switch {
	case err != nil: // no worker, or no server: nobody else can have them
		if !errors.Is(err, queue.ErrNoWorker) {
			t.cfg.Log.Debug().Err(err).Msg("this process could not ask again for its calls")
		}
		return nil
	case got.Process.Instance != t.instance:
		return &ReplacedError{Trainer: t.cfg.Name, Process: got.Process}
	}
	return nil
}
