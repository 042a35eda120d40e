package jobs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/jobs"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// A training loop runs two rollouts of each task of a folder, as one job. `turngate
// up` starts the server and the worker, and prints the URL and the credentials.
func Example() {
	ctx := context.Background()
	url, creds, stop := up()
	defer stop()
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := tasks.Init(filepath.Join(dir, "tasks", "hello"), "debian:bookworm-slim"); err != nil {
		log.Fatal(err)
	}

	list, err := jobs.Find([]string{filepath.Join(dir, "tasks")})
	if err != nil {
		log.Fatal(err)
	}
	work, err := jobs.Begin(ctx, filepath.Join(dir, "runs", "first"), jobs.Plan{Variants: []jobs.Variant{{Agent: "command"}}, Backend: "dummy", Attempts: 2}, list, jobs.Rules{
		Trainer: "alpha",
		Request: func(t *tasks.Task, _ jobs.Variant) (schema.Request, error) {
			q := t.Request
			q.Agent, q.Sandbox = schema.AgentChoice{Name: "command", Args: []string{"agent"}}, schema.SandboxChoice{Backend: "dummy"}
			return q, nil
		},
		Answer: func(*tasks.Task, jobs.Variant) (trainer.Answerer, error) {
			return func(context.Context, *trainer.Call) (*schema.Reply, error) { // the policy
				return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}, nil
			}, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer work.Job.Close()

	t, err := trainer.Dial(ctx, trainer.Config{URL: url, Creds: creds, Name: "alpha", Log: zerolog.Nop()})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()
	if err := work.Run(ctx, t, jobs.Options{Remote: true}); err != nil {
		log.Fatal(err)
	}
	for _, r := range work.Job.Results() {
		fmt.Println(r.Task, r.Index, r.Status, *r.Reward)
	}
	// Output:
	// hello 0 done 1
	// hello 1 done 1
}

// up starts a server and a worker with dummy sandboxes, in this process.
func up() (url, creds string, stop func()) {
	dir, err := os.MkdirTemp("", "example-nats-")
	if err != nil {
		log.Fatal(err)
	}
	srv, err := broker.StartEmbedded(broker.EmbeddedConfig{StateDir: dir, Trainers: []string{"alpha"}, Workers: []string{"w1"}, Relaxed: true, Log: zerolog.Nop()})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	nc, err := broker.Dial(ctx, broker.Config{URL: srv.URL(), Creds: srv.WorkerCreds("w1"), Name: "w1", Inbox: broker.InboxFor("worker", "w1"), Log: zerolog.Nop()})
	if err == nil {
		err = nc.Streams.Setup(ctx, broker.StreamsConfig{})
	}
	if err != nil {
		log.Fatal(err)
	}
	stopWorker, err := runWorker(nc)
	if err != nil {
		log.Fatal(err)
	}
	return srv.URL(), srv.TrainerCreds("alpha"), func() {
		if err := stopWorker(); err != nil {
			log.Fatal(err)
		}
		nc.Close()
		srv.Shutdown()
		os.RemoveAll(dir)
	}
}
