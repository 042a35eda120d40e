package trainer

import (
	"context"
	"time"
)

// pollEvery is the time after which results are looked for, in case a hint was
// lost. It costs two reads, and one for each new result.
const pollEvery = 5 * time.Second

// poller looks for results after lost hints and failed reads, and for a lost store.
type poller struct {
	*base
	hints   *hints
	endings *endings
	auditor *auditor
	from    uint64 // stream sequence from which results are looked for
	store   string // name of the store, see queue.Results.Store
}

// open waits for this trainer's streams.
func (p *poller) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := p.requests.AwaitSetup(ctx)
	if err == nil {
		p.from, err = p.requests.Results.From(ctx, 0, nil)
	}
	if err == nil {
		p.store, err = p.requests.Results.Store(ctx)
	}
	return err
}

// poll looks once.
func (p *poller) poll() {
	if err := p.lookForResults(); err != nil {
		p.cfg.Log.Debug().Err(err).Msg("results were not looked for")
	} else if err := p.lookAtStore(); err != nil {
		p.cfg.Log.Debug().Err(err).Msg("it is not known whether the server has lost its store")
	}
	p.hints.retry()
	wake(p.endings.ready)
}

// lookAtStore submits the outstanding rollouts again if the server has lost them with its
// store.
func (p *poller) lookAtStore() error {
	ctx, cancel := context.WithTimeout(p.life, 10*time.Second)
	defer cancel()
	store, err := p.requests.Results.Store(ctx)
	if err != nil || store == p.store {
		return err
	}
	p.cfg.Log.Warn().Msg("the server has lost its store; requests that it does not have are submitted again")
	if err := p.auditor.auditOlder(0); err != nil {
		return err
	}
	p.store = store
	return nil
}

func (p *poller) lookForResults() error {
	ctx, cancel := context.WithTimeout(p.life, 30*time.Second)
	defer cancel()
	next, err := p.requests.Results.From(ctx, p.from, p.endings.hint)
	p.from = max(next, 1)
	return err
}
