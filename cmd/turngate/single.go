package main

import (
	"context"
	"sync"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// singles runs single rollouts for commands that judge each result, with a worker
// inside this process or on other workers.
type singles struct {
	trainer *trainer.Trainer
	runner  *runner
	close   func()
}

// openSingles connects in the same way as run. The returned context ends, with a
// cause, when no more results can arrive. With a nil answer, calls get no answer.
func openSingles(ctx context.Context, f *runFlags, answer trainer.Answerer, log zerolog.Logger) (context.Context, *singles, error) {
	serving, stop := context.WithCancelCause(ctx)
	l, err := f.connect(serving, nil, stop, log)
	if err != nil {
		err = storeFailed(serving, err)
		stop(nil)
		return nil, nil, err
	}
	t, err := trainer.Dial(serving, trainer.Config{Broker: l.broker, Name: f.name, Shard: "run-" + randomHex(8), Log: log})
	if err != nil {
		err = storeFailed(serving, err)
		stop(nil)
		l.close()
		return nil, nil, err
	}
	s := &singles{trainer: t, runner: newRunner(t)}
	var bg sync.WaitGroup
	bg.Go(func() {
		if err := s.runner.serve(serving); serving.Err() == nil {
			stop(err)
		}
	})
	if answer != nil {
		bg.Go(func() {
			if err := t.Serve(serving, answer); serving.Err() == nil {
				stop(err)
			}
		})
	}
	s.close = func() {
		stop(nil)
		bg.Wait()
		t.Close()
		l.close()
	}
	return serving, s, nil
}

// run runs a request on a task's bundle, which may be nil.
func (s *singles) run(ctx context.Context, q schema.Request, bundle []byte) (schema.Result, error) {
	if bundle != nil {
		sha, err := s.trainer.PutBundle(ctx, bundle)
		if err != nil {
			return schema.Result{}, err
		}
		q.Task.Bundle = sha
	}
	return s.runner.run(ctx, q)
}
