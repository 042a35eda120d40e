// Command trainer is a short training loop: in each round it submits a group of
// rollouts of one task, answers the agents' model calls with a policy of one
// parameter, and trains that policy on the ids, log-probs and rewards of the
// generations that reached an agent. Start NATS and a worker with `turngate up`,
// then run this with the URL and the credentials that it prints:
//
//	go run ./examples/trainer -nats nats://127.0.0.1:4222 -creds FILE examples/tasks/hello
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

func main() {
	url := flag.String("nats", "nats://127.0.0.1:4222", "URL of the NATS server")
	creds := flag.String("creds", "", "file with the trainer's credentials")
	name := flag.String("name", "local", "name of the trainer")
	group := flag.Int("n", 4, "rollouts of the task in a group")
	rounds := flag.Int("rounds", 1, "groups, each with a newer policy")
	flag.Parse()
	if err := run(*url, *creds, *name, flag.Arg(0), *group, *rounds); err != nil {
		log.Fatal(err)
	}
}

func run(url, creds, name, dir string, group, rounds int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	t, err := trainer.Dial(ctx, trainer.Config{URL: url, Creds: creds, Name: name, Log: zerolog.New(os.Stderr)})
	if err != nil {
		return err
	}
	defer t.Close()

	// The task becomes a bundle and a request.
	task, err := tasks.Load(dir, tasks.Options{})
	if err != nil {
		return err
	}
	request := task.Request
	if request.Task.Bundle, err = t.PutBundle(ctx, task.Bundle); err != nil {
		return err
	}
	request.Agent.Name, request.Sandbox.Backend = "mini", "local"

	// The policy answers in the background; the loop trains it.
	p := &policy{version: 1, samples: map[string]trainer.Sample{}}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = t.Serve(serving, p.answer) }() // returns when the context ends
	for round := range rounds {
		results, err := rollOut(ctx, t, request, fmt.Sprintf("%d-%d", time.Now().UnixNano(), round), group)
		if err != nil {
			return err
		}
		for _, r := range results {
			reward := "unknown" // not the same as 0
			if r.Reward != nil {
				reward = fmt.Sprint(*r.Reward)
			}
			fmt.Printf("%s index %d: %s, reward %s\n", r.ID, r.Index, r.Status, reward)
		}
		t.Hold(trainer.Selection{}) // no call is answered by half a policy
		p.train(results)
		t.Resume()
		fmt.Printf("policy %d solves the task with probability %.2f\n", p.version, p.good())
	}
	return nil
}

// rollOut runs one group and returns its results.
func rollOut(ctx context.Context, t *trainer.Trainer, request schema.Request, group string, n int) ([]schema.Result, error) {
	var requests []schema.Request
	for i := range n {
		r := request
		r.Group, r.Index = group, i
		var err error
		if r.ID, err = t.NewID(fmt.Sprintf("%s-%d", group, i)); err != nil {
			return nil, err
		}
		requests = append(requests, r)
	}
	if err := t.Submit(ctx, requests); err != nil {
		return nil, err
	}
	var results []schema.Result
	err := t.Results(ctx, func(r schema.Result) { results = append(results, r) })
	return results, err
}
