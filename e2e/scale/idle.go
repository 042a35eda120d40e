package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/internal/bundles"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// idleFor is the time over which the processor time of idle rollouts is measured. It
// has all intervals of the protocol.
const idleFor = 40 * time.Second

// idle lets rollouts wait for their model all at once, and prints the resources that the
// server, the worker and the trainer use. The agents are goroutines of the worker.
func idle(ctx context.Context, o options) error {
	s, err := startSystem(ctx, o, 1)
	if err != nil {
		return err
	}
	defer s.stop()
	w, err := s.startProcess(ctx, o, "worker", process{url: s.url(), creds: s.keys.WorkerCreds(workerName(0)), name: workerName(0)})
	if err != nil {
		return err
	}
	defer w.stop()
	empty, err := w.usage()
	if err != nil {
		return err
	}
	begun := time.Now()
	t, err := s.startProcess(ctx, o, "trainer", process{url: s.url(), creds: s.keys.TrainerCreds(trainerName), name: trainerName})
	if err != nil {
		return err
	}
	defer t.stop()
	if err := t.await("waiting"); err != nil {
		return err
	}
	fmt.Printf("%d rollouts wait for their model after %s; the worker took %d MB without one\n", o.rollouts, time.Since(begun).Round(100*time.Millisecond), empty.resident>>20)
	parts := []struct {
		name string
		take func() (usage, error)
	}{{fmt.Sprintf("servers (%d)", o.servers), s.usage}, {"worker, with the agents", w.usage}, {"trainer", t.usage}}
	before := make([]usage, len(parts))
	for i, p := range parts {
		if before[i], err = p.take(); err != nil {
			return err
		}
	}
	if wire.Pause(ctx, idleFor) != nil {
		return ctx.Err()
	}
	for i, p := range parts {
		u, err := p.take()
		if err != nil {
			return err
		}
		fmt.Printf("%-24s %5d MB  %5.1f KB for each rollout  %5.1f %% of a core\n", p.name, u.resident>>20, float64(u.resident)/1024/float64(o.rollouts), 100*(u.cpu-before[i].cpu).Seconds()/idleFor.Seconds())
	}
	begun = time.Now()
	fmt.Fprintln(t.tell, "answer")
	if err := t.await("ended"); err != nil {
		return err
	}
	fmt.Printf("all %d have a result %s after their answers were given\n", o.rollouts, time.Since(begun).Round(100*time.Millisecond))
	return nil
}

// idleWorker is a worker with slots for all rollouts.
func idleWorker(ctx context.Context, o options) error {
	b, err := dial(ctx, broker.RoleWorker, o.process)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := setUp(ctx, b, broker.StreamsConfig{Replicas: o.servers}, trainerName); err != nil {
		return err
	}
	cache, err := bundles.New(o.process.dir, 1<<30, zerolog.Nop())
	if err != nil {
		return err
	}
	backend := &dummy.Backend{Programs: map[string]dummy.Program{"agent": ask, "talker": talk}}
	c := worker.Config{Slots: o.rollouts, Backends: []sandboxes.Backend{backend}, Agents: agents.All(), Bundles: cache, Grace: time.Second, Log: zerolog.Nop()}
	side, err := queue.NewWorker(b, queue.WorkerConfig{Worker: o.process.name, Instance: "i1", Slots: o.rollouts, Offer: c.Offer})
	if err != nil {
		return err
	}
	defer side.Close()
	calls, err := modelcall.NewClient(b, o.process.name, "i1")
	if err != nil {
		return err
	}
	defer calls.Close()
	w, err := worker.New(c, side, calls)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return w.Run(ctx)
}

// conversation is the text of a call, of about 8 KB.
func conversation() string {
	return strings.Repeat("All work and no play makes Jack a dull boy. ", 190)
}

// ask is an agent that asks one question.
func ask(ctx context.Context, p *dummy.Proc) int {
	if _, err := question(ctx, http.DefaultClient, p, conversation()); err != nil {
		fmt.Fprintln(p.Stderr, err)
		return 1
	}
	return 0
}

// question asks the model and returns its answer, as the gate sends it.
func question(ctx context.Context, client *http.Client, p *dummy.Proc, text string) (string, error) {
	body, err := json.Marshal(map[string]any{"model": "policy", "messages": []any{map[string]string{"role": "user", "content": text}}})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", strings.NewReader(string(body)))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body) // the gate keeps the connection alive until the answer
	if err == nil && !strings.Contains(string(said), "choices") {
		err = fmt.Errorf("status %d: %s", res.StatusCode, said)
	}
	return string(said), err
}

// idleTrainer submits the rollouts, tells when all wait for an answer, and answers them
// once it is told to.
func idleTrainer(ctx context.Context, o options) error {
	t, err := trainer.Dial(ctx, trainer.Config{URL: o.process.url, Creds: o.process.creds, Name: o.process.name, Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	defer t.Close()
	fmt.Println("ready")
	if err := submitAll(ctx, t, o.rollouts, "agent"); err != nil {
		return err
	}
	var open []*trainer.Pending
	for len(open) < o.rollouts {
		p, err := t.Next(ctx)
		if err != nil {
			return err
		}
		open = append(open, p)
	}
	fmt.Println("waiting")
	if !bufio.NewScanner(os.Stdin).Scan() {
		return errors.New("the run has ended")
	}
	for _, p := range open {
		if err := p.Reply(&schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}); err != nil {
			return err
		}
	}
	return endAll(ctx, t, o.rollouts)
}

// submitAll submits rollouts with a program as their agent. The number of calls is not
// bounded.
func submitAll(ctx context.Context, t *trainer.Trainer, rollouts int, agent string) error {
	for at := 0; at < rollouts; at += 100 {
		var group []schema.Request
		for i := at; i < min(at+100, rollouts); i++ {
			r := request(i)
			r.Agent = schema.AgentChoice{Name: "command", Args: []string{agent}}
			r.Gate.MaxCalls, r.Gate.MaxRepeats = 1<<30, 1<<30
			group = append(group, r)
		}
		if err := t.Submit(ctx, group); err != nil {
			return err
		}
	}
	return nil
}

// endAll waits for the results, which are all of a first attempt without a fault.
func endAll(ctx context.Context, t *trainer.Trainer, rollouts int) error {
	for range rollouts {
		r, err := t.NextResult(ctx)
		if err != nil {
			return err
		}
		if r.Fault != nil {
			return fmt.Errorf("%s: %w", r.ID, r.Fault)
		}
		if r.Attempt != 1 || r.Exit == nil || r.Exit.Code != 0 {
			return fmt.Errorf("%s: attempt %d, exit %+v", r.ID, r.Attempt, r.Exit)
		}
	}
	fmt.Println("ended")
	return nil
}

// request is the rollout with a number.
func request(i int) schema.Request {
	return schema.Request{
		ID: schema.ID(fmt.Sprintf("%s-r%d", trainerName, i)), Trainer: trainerName, Task: schema.Task{Name: "scale", Instruction: "work"},
		Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "dummy"}, MaxAttempts: 20, Gate: schema.GateOptions{WaitMS: time.Hour.Milliseconds()},
	}
}
