package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

const (
	pythonCallers = 64
	pythonCalls   = 60 // of each caller in a round
	// pythonRounds is the number of calls of a rollout before the next one begins.
	pythonRounds = 20
)

// BenchmarkPythonTrainer measures one process of the Python client that answers the calls of 64
// rollouts, with 8 KB of new messages each. The limit is a bare subscriber of nats-py that
// sends the same bodies back, in the same run.
func BenchmarkPythonTrainer(b *testing.B) {
	python := testenv.Python(b, "turngate")
	n := testenv.StartNATS(b, "alpha")
	content := strings.Repeat("All tests passed, but one of them was slow. ", 8192/44)
	messages := []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"role":"user","content":%q}`, content))}
	call := func(rollout schema.ID, number int) schema.Call {
		c := schema.Call{V: 1, Key: schema.Key{Rollout: rollout, Attempt: 1, Call: number}.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: messages}
		if number > 1 {
			c.Base, c.Keep = number-1, number-1
		}
		return c
	}

	var limit, client time.Duration
	rounds := 0
	for b.Loop() { // one operation is a round of all calls with both
		rounds++
		stop := answering(b, python, "echo", n)
		limit += inParallel(b, echoes(b, n, call))
		stop()
		stop = answering(b, python, "client", n)
		client += inParallel(b, calls(b, n, call))
		stop()
	}
	total := float64(rounds * pythonCallers * pythonCalls)
	b.ReportMetric(total/limit.Seconds(), "echoes/s")
	b.ReportMetric(total/client.Seconds(), "calls/s")
	b.ReportMetric(limit.Seconds()/client.Seconds(), "of-the-limit")
	b.ReportMetric(0, "ns/op")
}

// inParallel has every caller do its share of the calls, and returns their time.
func inParallel(b *testing.B, do func(caller, call int) error) time.Duration {
	var wg sync.WaitGroup
	start := time.Now()
	for caller := range pythonCallers {
		wg.Go(func() {
			for i := range pythonCalls {
				if err := do(caller, i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// calls makes calls as a worker does.
func calls(b *testing.B, n testenv.NATS, call func(schema.ID, int) schema.Call) func(int, int) error {
	client, err := modelcall.NewClient(n.Worker(b, "w1"), "w1", "i1")
	harness.Must(b, err)
	b.Cleanup(client.Close)
	callers := make([]*modelcall.Caller, pythonCallers)
	return func(caller, i int) error {
		id := schema.ID(fmt.Sprintf("alpha-%d-%d", caller, i/pythonRounds))
		if i%pythonRounds == 0 {
			callers[caller] = client.Caller(harness.Request(id).WithDefaults(), nil)
		}
		err := callers[caller].Complete(b.Context(), call(id, i%pythonRounds+1), func(schema.Frame) error { return nil })
		return err
	}
}

// echoes sends the bodies of the same calls.
func echoes(b *testing.B, n testenv.NATS, call func(schema.ID, int) schema.Call) func(int, int) error {
	nc := n.Raw(b, n.AdmitWorker(b, "w1"), "_INBOX.worker.w1")
	subs := make([]*nats.Subscription, pythonCallers)
	inbox := func(caller int) string { return fmt.Sprintf("_INBOX.gate.alpha.w1.echo.%d", caller) }
	for caller := range subs {
		var err error
		subs[caller], err = nc.SubscribeSync(inbox(caller))
		harness.Must(b, err)
	}
	harness.Must(b, nc.Flush())
	return func(caller, i int) error {
		c := call(schema.ID(fmt.Sprintf("alpha-%d-%d", caller, i/pythonRounds)), i%pythonRounds+1)
		body, err := schema.Encode(&c)
		if err != nil {
			return err
		}
		subject := fmt.Sprintf("rollout.alpha-%d-%d.llm.alpha.0.1.%d", caller, i/pythonRounds, i%pythonRounds+1)
		if err := nc.PublishRequest(subject, inbox(caller), body); err != nil {
			return err
		}
		_, err = subs[caller].NextMsg(time.Minute)
		return err
	}
}

// answering starts a process that answers calls, and returns a function that ends it.
func answering(b *testing.B, python, how string, n testenv.NATS) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	dir := filepath.Join(testenv.Root(b), "clients", "python")
	cmd := exec.CommandContext(ctx, python, filepath.Join(dir, "benchmarks", "calls.py"), how, n.URL(), n.TrainerCreds("alpha"), "alpha")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(dir, "src"), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	harness.Must(b, err)
	harness.Must(b, cmd.Start())
	stop = sync.OnceFunc(func() {
		cancel()
		_ = cmd.Wait()
	})
	b.Cleanup(stop)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		b.Fatalf("%s said %q: %v", how, line, err)
	}
	return stop
}
