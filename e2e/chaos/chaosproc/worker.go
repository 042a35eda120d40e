package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/backends/local"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

func runWorker(ctx context.Context, o options, d *debugServer, log zerolog.Logger) error {
	instance := fmt.Sprintf("p%d", os.Getpid())
	b, err := dial(ctx, o, broker.InboxFor("worker", o.name)+"."+instance, log)
	if err != nil {
		return err
	}
	timing := broker.DefaultTiming().Faster(o.speed)
	for {
		err := b.Streams.Setup(ctx, broker.StreamsConfig{Timing: timing, Replicas: o.replicas, Versions: maxVersions})
		if err == nil {
			break
		}
		log.Warn().Err(err).Msg("the streams are not there yet")
		if !sleep(ctx, 200*time.Millisecond) {
			return nil
		}
	}
	rec, err := openRecord(filepath.Join(o.dir, "agents.jsonl"))
	if err != nil {
		return err
	}
	box := inBox{rec, o.census}
	backends := []sandboxes.Backend{&dummy.Backend{Programs: map[string]dummy.Program{"agent": box.agent, "stubborn": box.stubborn, "poison": box.poison}}}
	if o.helper != "" {
		backends = append(backends, &local.Backend{Helper: o.helper, StateDir: filepath.Join(o.dir, "state-"+o.name)})
	}
	cache, err := bundles.New(filepath.Join(o.dir, "bundles-"+o.name), 1<<30, log)
	if err != nil {
		return err
	}
	state := filepath.Join(o.dir, "state-"+o.name)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	owner, err := worker.OwnerOf(o.name, state)
	if err != nil {
		return err
	}
	c := worker.Config{Owner: owner, Slots: o.slots, Backends: backends, Agents: agents.All(), Bundles: cache, Grace: 500 * time.Millisecond, Log: log}
	side, err := queue.NewWorker(b, queue.WorkerConfig{Worker: o.name, Instance: instance, Slots: o.slots, Offer: c.Offer, Timing: timing})
	if err != nil {
		return err
	}
	calls, err := modelcall.NewClient(b, o.name, instance)
	if err != nil {
		return err
	}
	w, err := worker.New(c, side, calls)
	if err != nil {
		return err
	}
	fmt.Println(history.Ready)
	if err := w.Run(ctx); err != nil {
		return err
	}
	calls.Close()
	side.Close()
	fmt.Println(history.Ended)
	<-d.closed // the run has counted the subscriptions
	b.Close()
	http.DefaultClient.CloseIdleConnections()
	<-d.exit // the run has counted goroutines and files
	return nil
}

// maxVersions is how many versions of a record the streams of a run keep: more
// than a rollout can have.
const maxVersions = 100_000

// request is one rollout of a run.
func request(o options, n int, group string) schema.Request {
	id, err := schema.NewID(o.name, fmt.Sprintf("%s%d", o.prefix, n))
	if err != nil {
		panic(err)
	}
	env := map[string]string{"CHAOS_CALLS": strconv.Itoa(cmp.Or(o.calls, 1+n%4)), "CHAOS_ID": string(id)}
	r := schema.Request{
		ID: id, Trainer: o.name, Group: group, Index: n, Task: schema.Task{Name: "chaos", Instruction: "work"},
		Agent: schema.AgentChoice{Name: "command", Args: []string{cmp.Or(o.agent, "agent")}}, Sandbox: schema.SandboxChoice{Backend: "dummy", Env: env}, MaxAttempts: 50,
	}
	r.Gate.WaitMS, r.DelayMS = 600_000, o.delay.Milliseconds()
	if n%3 == 0 {
		env["CHAOS_STREAM"], r.Gate.Stream = "1", schema.StreamPass
	}
	switch {
	case o.local > 0 && n%int(1/o.local) == int(1/o.local)-1:
		r.Agent, r.Sandbox = schema.AgentChoice{Name: "mini"}, schema.SandboxChoice{Backend: "local"}
	case n%97 == 13 && !o.harmless:
		r.Agent.Args[0], r.MaxAttempts = "poison", 2
	case n%4 == 2:
		r.MaxAttempts = 2 // so few that a killed worker often uses them up
	}
	return r
}
