package main

import (
	"context"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// exampleTasks is the folder, in the working directory, of the tasks that a console offers.
const exampleTasks = "examples/tasks"

// playOf lets a console run rollouts as a trainer.
func playOf(nf natsFlags, name string, log zerolog.Logger) *console.Play {
	p := &console.Play{
		Name: name,
		Dial: func(ctx context.Context) (*trainer.Trainer, error) {
			return trainer.Dial(ctx, trainer.Config{URL: nf.url, Creds: nf.creds, Name: name, Shard: console.PlayShard, Orphans: trainer.AdoptOrphans, Log: log})
		},
		Load: func(dir string) (schema.Request, []byte, error) {
			t, err := tasks.Load(dir, tasks.Options{})
			if err != nil {
				return schema.Request{}, nil, err
			}
			return t.Request, t.Bundle, nil
		},
		Answerer: func(answerer, model string) (trainer.Answerer, error) {
			f := modelFlags{trainer: answerer}
			return f.open(model)
		},
	}
	if dirs, err := tasks.Find([]string{exampleTasks}); err == nil {
		p.Tasks = dirs
	}
	return p
}

// play lets the console of `turngate up` run rollouts as the first trainer; nil: there is
// none.
func (f *serverFlags) play(srv *broker.Embedded, log zerolog.Logger) *console.Play {
	names := splitList(f.trainers)
	if len(names) == 0 {
		return nil
	}
	return playOf(natsFlags{url: srv.URL(), creds: srv.TrainerCreds(names[0])}, names[0], log)
}
