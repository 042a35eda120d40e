package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker/queue"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// verifying is a request of a shell command as the agent, which a trainer verifies.
func verifying(t *testing.T, sandbox, id, script string) schema.Request {
	t.Helper()
	r := schema.Request{
		ID: schema.ID(id), Trainer: "local", Task: schema.Task{Name: "verified", Instruction: "x"}, Agent: schema.AgentChoice{Name: "command", Args: []string{"sh", "-c", script}},
		Sandbox: schema.SandboxChoice{Backend: sandbox}, Verify: &schema.Verify{By: schema.VerifyByTrainer, User: "root"},
	}
	if sandbox == "docker" {
		r.Sandbox.Image = testenv.Image(t)
	}
	return r
}

func (b *bench) verifier(t *testing.T, f trainer.Verifier) *trainer.Trainer {
	t.Helper()
	tr, err := trainer.Dial(t.Context(), trainer.Config{URL: b.nats.URL(), Creds: b.nats.TrainerCreds("local"), Name: "local", Verify: f, AnswerAll: true, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

func nextResult(t *testing.T, tr *trainer.Trainer) schema.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	res, err := tr.NextResult(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestATrainerActsInTheSandbox: everything that a trainer asks for stays in the sandbox, for
// all paths and all files of the agent.
func TestATrainerActsInTheSandbox(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, sandbox := range []string{"docker", "local"} {
		t.Run(sandbox, func(t *testing.T) {
			b := newBench(t)
			b.need(t, sandbox, "command")
			b.worker(t, "", "--sandboxes", sandbox)
			secret := filepath.Join(t.TempDir(), "host.txt")
			if err := os.WriteFile(secret, []byte("of the host"), 0o644); err != nil {
				t.Fatal(err)
			}
			tr := b.verifier(t, func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
				return verifySandbox(ctx, h, secret)
			})
			r := verifying(t, sandbox, "local-acts", `echo done > out.txt; ln -s `+secret+` link; ln -s ../../../../../.. up; mkfifo pipe; mkdir -p a/b`)
			if err := tr.Submit(t.Context(), []schema.Request{r}); err != nil {
				t.Fatal(err)
			}
			if res := nextResult(t, tr); res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 1 {
				t.Errorf("got %s, reward %v, fault %v, phases %+v", res.Status, res.Reward, res.Fault, res.Phases)
			}
		})
	}
}

func verifySandbox(ctx context.Context, h *trainer.Handle, secret string) (*schema.Verdict, error) {
	var wrong []error
	check := func(what string, ok bool, err error) {
		if !ok {
			wrong = append(wrong, fmt.Errorf("%s: %w", what, err))
		}
	}
	data, err := h.Read(ctx, "out.txt")
	check("read", err == nil && string(data) == "done\n", err)
	for _, path := range []string{secret, "link", "up" + secret, "../../../../../../.." + secret, "/proc/1/root" + secret} {
		data, err = h.Read(ctx, path)
		check("a file of the host by "+path, err != nil && !strings.Contains(string(data), "host"), err)
	}
	_, err = h.Read(ctx, "a/none.txt")
	check("it is missing", errors.Is(err, fs.ErrNotExist), err)
	err = h.Write(ctx, "link", []byte("of the trainer"), 0o644)
	check("write over a link", true, err)
	now, err := os.ReadFile(secret)
	check("the file of the host", string(now) == "of the host", err)
	_, err = h.Read(ctx, "pipe")
	check("read a pipe", err != nil, err)
	large := []byte(strings.Repeat("0123456789abcdef", 3<<16)) // 3 MiB
	check("write", h.Write(ctx, "a/c/large", large, 0o640) == nil, nil)
	data, err = h.Read(ctx, "a/c/large")
	check("read what was written", err == nil && string(data) == string(large), err)
	list, err := h.List(ctx, "a")
	check("list", err == nil && len(list) == 2 && list[0].Name == "b" && list[0].Kind == schema.KindFolder && list[1].Name == "c", err)
	out, err := h.Exec(ctx, trainer.Command{Args: []string{"printf", "%s|", "a b", "$(id)", "*"}})
	check("exec", err == nil && out.Exit.OK() && string(out.Stdout) == "a b|$(id)|*|", err)
	out, err = h.Exec(ctx, trainer.Command{Run: "id -u; cat; pwd; echo $A >&2; exit 3", Stdin: []byte("in\n"), Env: map[string]string{"A": "1"}, Dir: "a"})
	check("shell", err == nil && out.Exit.Code == 3 && string(out.Stdout) == "0\nin\n"+h.Workdir+"/a\n" && string(out.Stderr) == "1\n", err)
	out, err = h.Exec(ctx, trainer.Command{Run: "sleep 70081 & sleep 70081", Timeout: 300 * time.Millisecond})
	check("a command over its time", err == nil && out.Exit.TimedOut, err)
	if err := errors.Join(wrong...); err != nil {
		return nil, err
	}
	one := 1.0
	return &schema.Verdict{Reward: &one}, nil
}

// TestVerifierProcess is no test but the trainer that the next one kills.
func TestVerifierProcess(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	url := os.Getenv("TURNGATE_TEST_VERIFIER")
	if url == "" {
		return
	}
	tr, err := trainer.Dial(t.Context(), trainer.Config{
		URL: url, Creds: os.Getenv("TURNGATE_TEST_CREDS"), Name: "local", AnswerAll: true, Log: zerolog.Nop(),
		Verify: func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
			if _, err := h.Exec(ctx, trainer.Command{Run: "echo first > mark"}); err != nil {
				return nil, err
			}
			fmt.Println("it verifies")
			_, err := h.Exec(ctx, trainer.Command{Args: []string{"sleep", "70082"}})
			return nil, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	<-t.Context().Done()
	select {}
}

// TestAVerificationSurvivesItsTrainerAndItsWorker kills the trainer with -9 while it
// verifies; its next process verifies in the same sandbox. Then it kills the worker
// while the trainer verifies; the worker's next process begins another attempt, and
// asks anew.
func TestAVerificationSurvivesItsTrainerAndItsWorker(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, sandbox := range []string{"docker", "local"} {
		t.Run(sandbox, func(t *testing.T) {
			b := newBench(t)
			b.need(t, sandbox, "command")
			state := filepath.Join(t.TempDir(), "state")
			w := b.worker(t, "", "--sandboxes", sandbox, "--state", state)
			side, err := queue.NewTrainer(b.nats.Trainer(t, "local"), "local")
			if err != nil {
				t.Fatal(err)
			}
			r := verifying(t, sandbox, "local-"+sandbox, "echo done > out.txt")
			if _, err := side.Submit(t.Context(), subjects.DefaultLane, []schema.Request{r}); err != nil {
				t.Fatal(err)
			}
			first := start(t, "env", "TURNGATE_TEST_VERIFIER="+b.nats.URL(), "TURNGATE_TEST_CREDS="+b.nats.TrainerCreds("local"), os.Args[0], "-test.run=^TestVerifierProcess$", "-test.v")
			harness.Eventually(t, "the first verification", 5*time.Minute, func() bool { return strings.Contains(first.out.String(), "it verifies") })
			harness.Eventually(t, "its command", 5*time.Minute, func() bool { return len(sleepers(t, "70082")) == 1 })
			if err := first.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-first.done

			handles, dead := make(chan *trainer.Handle, 2), make(chan error, 1)
			var kill atomic.Bool
			tr := b.verifier(t, func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
				handles <- h
				_, err := h.Read(ctx, "mark")
				if h.Attempt == 1 && err == nil && kill.CompareAndSwap(false, true) {
					if err := w.cmd.Process.Kill(); err != nil {
						return nil, err
					}
					_, err = h.Exec(ctx, trainer.Command{Args: []string{"true"}})
					dead <- err
					return nil, err
				}
				one := 1.0
				if h.Attempt != 2 || !errors.Is(err, fs.ErrNotExist) {
					one = 0
				}
				return &schema.Verdict{Reward: &one}, nil
			})
			if err := tr.Adopt(t.Context(), []schema.Request{r}); err != nil {
				t.Fatal(err)
			}
			h := <-handles
			<-w.done
			harness.Eventually(t, "the end of the command", 5*time.Minute, func() bool { return len(sleepers(t, "70082")) == 0 })
			b.worker(t, "", "--sandboxes", sandbox, "--state", state)
			res := nextResult(t, tr)
			if res.Status != schema.StatusDone || res.Attempt != 2 || res.Reward == nil || *res.Reward != 1 {
				t.Errorf("got %s, attempt %d, reward %v, fault %v", res.Status, res.Attempt, res.Reward, res.Fault)
			}
			if err := <-dead; !errors.Is(err, trainer.ErrOver) {
				t.Errorf("the handle of the dead worker's attempt: %v", err)
			}
			if _, err := h.Read(t.Context(), "mark"); !errors.Is(err, trainer.ErrOver) {
				t.Errorf("the handle of an earlier attempt: %v", err)
			}
		})
	}
}
