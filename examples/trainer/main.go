// Command trainer is a training loop in a page: it submits a group of rollouts
// of one task, answers the agents' model calls itself, and takes the rewards.
// Start NATS and a worker with `turngate up`, then run this with the URL and
// the credentials that it prints:
//
//	go run ./examples/trainer -nats nats://127.0.0.1:4222 -creds FILE examples/tasks/hello
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/broker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

func main() {
	url := flag.String("nats", "nats://127.0.0.1:4222", "URL of the NATS server")
	creds := flag.String("creds", "", "file with the trainer's credentials")
	name := flag.String("name", "local", "name of the trainer")
	group := flag.Int("n", 4, "rollouts of the task")
	flag.Parse()
	if err := run(*url, *creds, *name, flag.Arg(0), *group); err != nil {
		log.Fatal(err)
	}
}

func run(url, creds, name, dir string, group int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	b, err := broker.Dial(ctx, broker.Config{URL: url, Creds: creds, Name: name, Inbox: broker.InboxFor("trainer", name), Log: zerolog.New(os.Stderr)})
	if err != nil {
		return err
	}
	defer b.Close()
	t, err := trainer.New(trainer.Config{Broker: b, Name: name, Log: zerolog.New(os.Stderr)})
	if err != nil {
		return err
	}
	defer t.Close()

	// The task becomes a bundle, and a request for each rollout of the group.
	task, err := tasks.Load(dir, tasks.Options{Lookup: os.LookupEnv})
	if err != nil {
		return err
	}
	request := task.Request
	if request.Task.Bundle, err = t.PutBundle(ctx, task.Bundle); err != nil {
		return err
	}
	request.Agent.Name, request.Sandbox.Backend, request.Group = "mini", "local", fmt.Sprint(time.Now().UnixNano())
	var requests []schema.Request
	for i := range group {
		r := request
		r.Index = i
		if r.ID, err = schema.NewID(name, fmt.Sprintf("%s-%d", r.Group, i)); err != nil {
			return err
		}
		requests = append(requests, r)
	}
	if err := t.Submit(ctx, requests); err != nil {
		return err
	}

	// The policy answers in the background; the loop takes the results.
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = t.Serve(serving, policy) }() // it ends with the context
	return t.Results(ctx, func(r schema.Result) {
		reward := "unknown" // which is not 0
		if r.Reward != nil {
			reward = fmt.Sprint(*r.Reward)
		}
		fmt.Printf("%s index %d: %s, reward %s\n", r.ID, r.Index, r.Status, reward)
	})
}

// policy stands in for a model: half of the group does what the task asks.
// A real one would also fill in prompt ids, completion ids and log-probs.
func policy(_ context.Context, c *schema.Call) (*schema.Reply, error) {
	if strings.Contains(string(c.Messages[len(c.Messages)-1]), `"role":"tool"`) {
		return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"Done."}`), FinishReason: "stop"}, nil
	}
	key, err := schema.ParseKey(c.Key)
	if err != nil {
		return nil, err
	}
	greeting := "Hello, world!"
	if strings.HasSuffix(string(key.Rollout), "1") || strings.HasSuffix(string(key.Rollout), "3") {
		greeting = "Good night!"
	}
	arguments, err := json.Marshal(map[string]string{"command": "echo '" + greeting + "' > hello.txt"})
	if err != nil {
		return nil, err
	}
	message, err := json.Marshal(map[string]any{"role": "assistant", "content": nil, "tool_calls": []any{map[string]any{
		"id": "call_1", "type": "function", "function": map[string]any{"name": "bash", "arguments": string(arguments)},
	}}})
	return &schema.Reply{Message: message, FinishReason: "tool_calls"}, err
}
