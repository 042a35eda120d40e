package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker/wire"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// talkers is the number of agents that call their model without a pause.
const talkers = 64

// lastAnswer ends an agent that calls its model without a pause.
const lastAnswer = "enough"

// modelCalls lets the agents of one worker call their model. The trainer answers at once.
func modelCalls(ctx context.Context, o options, s *system) (rate, error) {
	o.rollouts = talkers
	name := workerName(0)
	w, err := s.startProcess(ctx, o, "worker", process{url: s.urls[0], creds: s.keys.WorkerCreds(name), name: name})
	if err != nil {
		return rate{}, err
	}
	defer w.stop()
	t, err := s.startProcess(ctx, o, "answerer", process{url: s.urls[len(s.urls)-1], creds: s.keys.TrainerCreds(trainerName), name: trainerName})
	if err != nil {
		return rate{}, err
	}
	defer t.stop()
	if err := t.await("answering"); err != nil {
		return rate{}, err
	}
	if wire.Pause(ctx, warmUp) != nil {
		return rate{}, ctx.Err()
	}
	answered := func() (int64, error) {
		fmt.Fprintln(t.tell, "count")
		line, err := t.line("answered ")
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(line, 10, 64)
	}
	r, err := s.rateOf(answered, func() error { return wire.Pause(ctx, rateFor) })
	if err != nil {
		return r, err
	}
	fmt.Fprintln(t.tell, "end")
	return r, t.await("ended")
}

// talk is an agent that asks one question after the other, each with the text of a new
// conversation, until the last answer.
func talk(ctx context.Context, p *dummy.Proc) int {
	client := &http.Client{Transport: &http.Transport{}} // with a connection of its own, as an agent has
	defer client.CloseIdleConnections()
	for i := 0; ; i++ {
		said, err := question(ctx, client, p, strconv.Itoa(i)+" "+conversation())
		if err != nil {
			fmt.Fprintln(p.Stderr, err)
			return 1
		}
		if strings.Contains(said, lastAnswer) {
			return 0
		}
	}
}

// answererTrainer submits the rollouts and answers all calls. It tells their number when
// it is asked.
func answererTrainer(ctx context.Context, o options) error {
	t, err := trainer.Dial(ctx, trainer.Config{URL: o.process.url, Creds: o.process.creds, Name: o.process.name, Log: zerolog.Nop()})
	if err != nil {
		return err
	}
	defer t.Close()
	fmt.Println("ready")
	if err := submitAll(ctx, t, o.rollouts, "talker"); err != nil {
		return err
	}
	var answered atomic.Int64
	var ends atomic.Bool
	all := make(chan struct{})
	answer := func(text string) *schema.Reply {
		return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"` + text + `"}`), FinishReason: "stop"}
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_ = t.Serve(serving, trainer.Whole(func(context.Context, *schema.Call) (*schema.Reply, error) {
			if n := answered.Add(1); n == int64(o.rollouts) {
				close(all)
			}
			if ends.Load() {
				return answer(lastAnswer), nil
			}
			return answer("go on"), nil
		}))
	}()
	select {
	case <-all:
		fmt.Println("answering")
	case <-ctx.Done():
		return ctx.Err()
	}
	told := bufio.NewScanner(os.Stdin)
	for {
		if !told.Scan() {
			return errors.New("the run has ended")
		}
		if told.Text() == "end" {
			break
		}
		fmt.Println("answered", answered.Load())
	}
	ends.Store(true)
	return endAll(ctx, t, o.rollouts)
}
