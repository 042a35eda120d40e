package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// verifies replaces the bench's trainer by one that verifies.
func (b *bench) verifies(t *testing.T, f trainer.Verifier) {
	t.Helper()
	b.trainer.Close()
	var err error
	if b.trainer, err = trainer.Dial(t.Context(), trainer.Config{Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", Verify: f, AnswerAll: true, Log: zerolog.Nop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.trainer.Close)
}

// watch collects the events of a rollout up to its result.
func (b *bench) watch(t *testing.T, id schema.ID) (events func() []schema.Event) {
	t.Helper()
	tap, err := b.nats.Ops(t).Events.Tap(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var all []schema.Event
	done := make(chan struct{})
	go func() {
		defer close(done)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_ = tap.Run(ctx, func(_ broker.Place, e schema.Event) {
			if all = append(all, e); e.Type == schema.EventResult {
				cancel()
			}
		})
	}()
	return func() []schema.Event { <-done; return all }
}

func byTrainer(id schema.ID) schema.Request {
	r := request(id)
	r.Verify = &schema.Verify{By: schema.VerifyByTrainer, Env: map[string]string{"A": "1"}}
	return r
}

func leavesAFile(_ context.Context, p *dummy.Proc) int {
	if p.Files.MkdirAll("workspace", 0o755) != nil || p.Files.WriteFile("workspace/out.txt", []byte("done\n"), 0o644) != nil {
		return 1
	}
	return 0
}

func number(n float64) *float64 { return &n }

func TestATrainerVerifiesThroughItsHandle(t *testing.T) {
	t.Parallel()
	counts := func(_ context.Context, p *dummy.Proc) int {
		in, err := io.ReadAll(p.Stdin)
		fmt.Fprintf(p.Stdout, "%d bytes, A=%s B=%s in %s", len(in), p.Env["A"], p.Env["B"], p.Dir)
		fmt.Fprint(p.Stderr, strings.Join(p.Args[1:], "|"))
		return map[bool]int{true: 7, false: 1}[err == nil]
	}
	b := newBench(t, map[string]dummy.Program{"agent": leavesAFile, "count": counts, "/bin/sh": counts})
	var h *trainer.Handle
	b.verifies(t, func(ctx context.Context, given *trainer.Handle) (*schema.Verdict, error) {
		h = given
		left, err := h.Read(ctx, "out.txt")
		if err != nil || string(left) != "done\n" {
			return nil, fmt.Errorf("read %q: %w", left, err)
		}
		if err := h.Write(ctx, "sub/x.bin", []byte{0, 255}, 0o600); err != nil {
			return nil, err
		}
		list, err := h.List(ctx, "")
		if err != nil || len(list) != 2 || list[0] != (schema.Entry{Name: "out.txt", Kind: schema.KindFile, Size: 5, Mode: 0o644}) || list[1].Name != "sub" || list[1].Kind != schema.KindFolder {
			return nil, fmt.Errorf("list %+v: %w", list, err)
		}
		out, err := h.Exec(ctx, trainer.Command{Args: []string{"count", "a b", "$HOME;"}, Stdin: []byte("four"), Env: map[string]string{"B": "2"}, Dir: "sub"})
		if err != nil || out.Exit.Code != 7 || string(out.Stdout) != "4 bytes, A=1 B=2 in /workspace/sub" || string(out.Stderr) != "a b|$HOME;" {
			return nil, fmt.Errorf("exec %+v: %w", out, err)
		}
		if out, err = h.Exec(ctx, trainer.Command{Run: "x | y"}); err != nil || string(out.Stderr) != "-c|x | y" {
			return nil, fmt.Errorf("shell %+v: %w", out, err)
		}
		return &schema.Verdict{Reward: number(0.25), Rewards: map[string]float64{"style": 1}, Metrics: map[string]float64{"tests": 4}, Messages: []string{"1 of 4 passed"}}, nil
	})
	events := b.watch(t, "alpha-1")
	r := byTrainer("alpha-1")
	r.Group, r.Index, r.Labels = "g", 2, map[string]string{"k": "v"}
	res := b.result(t, r)
	if res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 0.25 || res.Rewards["reward"] != 0.25 || res.Rewards["style"] != 1 || res.Metrics["tests"] != 4 {
		t.Fatalf("got %+v, fault %v", res, res.Fault)
	}
	if !slices.Contains(res.Notes, "1 of 4 passed") || res.Separation != schema.SeparationSameUser {
		t.Errorf("notes %q, separation %q", res.Notes, res.Separation)
	}
	if h.Rollout != "alpha-1" || h.Attempt != 1 || h.Task != "t" || h.Instruction != "do it" || h.Group != "g" || h.Index != 2 || h.Labels["k"] != "v" || h.Exit == nil || !h.Exit.OK() || h.LimitMS != 600_000 || h.Workdir != "/workspace" {
		t.Errorf("the handle has %+v", h.Verification)
	}
	var did []string
	for _, e := range events() {
		if e.Verify != nil {
			did = append(did, fmt.Sprint(e.Verify.Number, e.Verify.Do, e.Verify.Path, e.Verify.Command, e.Verify.Bytes))
		}
	}
	if want := []string{"1readout.txt5", "2writesub/x.bin2", "3list0", "4execsubcount a b $HOME;4", "5execx | y0"}; !slices.Equal(did, want) {
		t.Errorf("events %q, want %q", did, want)
	}
	if _, err := h.Read(t.Context(), "out.txt"); !errors.Is(err, trainer.ErrOver) {
		t.Errorf("after the verdict: %v", err)
	}
}

func TestOperationsThatCannotBeDone(t *testing.T) {
	t.Parallel()
	big := func(_ context.Context, p *dummy.Proc) int {
		_, _ = p.Stdout.Write(bytes.Repeat([]byte{'x'}, schema.MaxOutput+10))
		return 0
	}
	b := newBench(t, map[string]dummy.Program{"agent": leavesAFile, "big": big, "forever": func(ctx context.Context, _ *dummy.Proc) int { <-ctx.Done(); return 1 }})
	var all []error
	b.verifies(t, func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
		fault := func(err error) *schema.Fault {
			var f *schema.Fault
			if !errors.As(err, &f) {
				f = &schema.Fault{Message: fmt.Sprint(err)}
			}
			return f
		}
		check := func(what string, ok bool, err error) {
			if !ok {
				all = append(all, fmt.Errorf("%s: %w", what, err))
			}
		}
		_, err := h.Read(ctx, "none.txt")
		check("a missing file", errors.Is(err, fs.ErrNotExist) && fault(err).Code == schema.CodeMissing, err)
		_, err = h.Read(ctx, "../../../../../../etc/hostname")
		check("a file of the host", err != nil && fault(err).Status >= 400, err)
		_, err = h.Exec(ctx, trainer.Command{Args: []string{"none"}})
		check("a missing program", fault(err).Code == schema.CodeMissing && fault(err).Status == 404, err)
		var invalid *schema.InvalidError
		_, err = h.Exec(ctx, trainer.Command{Args: []string{"big"}, Run: "big"})
		check("two commands", errors.As(err, &invalid) && invalid.Field == "args", err)
		err = h.Write(ctx, "x", make([]byte, schema.MaxOperationData+1), 0)
		check("too much data", errors.As(err, &invalid) && invalid.Field == "data", err)
		out, err := h.Exec(ctx, trainer.Command{Args: []string{"big"}})
		check("much output", err == nil && out.Truncated && len(out.Stdout) == schema.MaxOutput, err)
		out, err = h.Exec(ctx, trainer.Command{Args: []string{"forever"}, Timeout: 50_000_000})
		check("a command over its time", err == nil && out.Exit.TimedOut, err)
		short, cancel := context.WithTimeout(ctx, 50_000_000)
		defer cancel()
		_, err = h.Exec(short, trainer.Command{Args: []string{"forever"}})
		check("a command that is given up", errors.Is(err, context.DeadlineExceeded), err)
		_, err = h.Read(ctx, "out.txt") // it ends the command before it
		check("the operation after it", err == nil, err)
		return &schema.Verdict{}, nil
	})
	res := b.result(t, byTrainer("alpha-1"))
	if err := errors.Join(all...); err != nil {
		t.Error(err)
	}
	if res.Status != schema.StatusDone || res.Reward != nil || res.Rewards != nil || res.Fault != nil { // not known, which is not 0
		t.Errorf("got %+v, fault %v", res, res.Fault)
	}
}

func TestVerificationsThatFail(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]dummy.Program{"agent": exits(0)})
	var late error
	tries := 0
	b.verifies(t, func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
		switch h.Labels["do"] {
		case "fail":
			return nil, errors.New("no such model")
		case "again":
			if tries++; tries == 1 {
				return nil, &schema.Fault{Code: "busy", Message: "later", Status: 503}
			}
			return &schema.Verdict{Reward: number(1)}, nil
		case "nan":
			return &schema.Verdict{Rewards: map[string]float64{"a": 1}}, nil
		default:
			<-ctx.Done()
			_, late = h.Read(context.WithoutCancel(ctx), "x")
			return &schema.Verdict{Reward: number(1)}, nil
		}
	})
	for i, tt := range []struct {
		do, code string
		status   schema.Status
	}{
		{"fail", schema.CodeNoReward, schema.StatusFailed},
		{"nan", schema.CodeNoReward, schema.StatusFailed},
		{"sleep", schema.CodeTimeout, schema.StatusFailed},
		{"again", "", schema.StatusDone},
	} {
		r := byTrainer(schema.ID(fmt.Sprintf("alpha-%d", i)))
		r.Labels = map[string]string{"do": tt.do}
		if tt.do == "sleep" {
			r.Limits.VerifyMS = 300
		}
		res := b.result(t, r)
		if res.Status != tt.status || (res.Reward == nil) != (tt.code != "") || tt.code != "" && (res.Fault.Code != tt.code || res.Fault.Who != schema.WhoTrainer) || res.Attempt != 1 {
			t.Errorf("%s: status %s, reward %v, fault %v", tt.do, res.Status, res.Reward, res.Fault)
		}
	}
	b.trainer.Close() // the verifier has returned
	if !errors.Is(late, trainer.ErrOver) {
		t.Errorf("an operation after the time limit: %v", late)
	}
	r := byTrainer("alpha-9")
	r.Verify.Run = "verify"
	if err := schema.Validate(&r); err == nil || !strings.Contains(err.Error(), "verify.run") {
		t.Errorf("two verifiers: %v", err)
	}
}

// A trainer that is away when the agent ends is waited for, and the time limit
// does not count this. A trainer that goes in the middle is replaced by its next
// process, with a handle of its own.
func TestAVerificationWaitsForItsTrainer(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := newBench(t, map[string]dummy.Program{"agent": leavesAFile, "forever": func(ctx context.Context, _ *dummy.Proc) int { <-ctx.Done(); return 1 }})
	r := byTrainer("alpha-1")
	r.Limits.VerifyMS = 20_000
	waits := make(chan struct{})
	var once sync.Once
	stop, err := b.trainer.Watch(func(e schema.Event) {
		if e.Wait != nil && e.Wait.For == schema.WaitVerify && !e.Wait.Ended {
			once.Do(func() { close(waits) })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.trainer.Submit(t.Context(), []schema.Request{r}); err != nil { // this process does not verify
		t.Fatal(err)
	}
	<-waits
	stop()
	begun, ended := make(chan struct{}), make(chan error, 1)
	b.verifies(t, func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
		if err := h.Write(ctx, "first", nil, 0); err != nil {
			return nil, err
		}
		close(begun)
		_, err := h.Exec(ctx, trainer.Command{Args: []string{"forever"}})
		ended <- err
		return nil, err
	})
	<-begun
	b.trainer.Close()
	if err := <-ended; !errors.Is(err, trainer.ErrClosed) {
		t.Errorf("the handle of a closed trainer: %v", err)
	}
	b.verifies(t, func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
		_, err := h.Read(ctx, "first") // the same sandbox
		return &schema.Verdict{Reward: number(1)}, err
	})
	if err := b.trainer.Adopt(t.Context(), []schema.Request{r}); err != nil {
		t.Fatal(err)
	}
	if res := b.next(t); res.Reward == nil || *res.Reward != 1 || res.Attempt != 1 || res.Fault != nil {
		t.Fatalf("got %+v, fault %v", res, res.Fault)
	}
}

func TestATrainerVerifiesSteps(t *testing.T) {
	t.Parallel()
	b := newBench(t, map[string]dummy.Program{"agent": leavesAFile})
	b.verifies(t, func(_ context.Context, h *trainer.Handle) (*schema.Verdict, error) {
		return &schema.Verdict{Reward: number(map[string]float64{"one": 1, "two": 0.5}[h.Step]), Metrics: map[string]float64{"n": 2}}, nil
	})
	r := byTrainer("alpha-1")
	r.Verify, r.Task.Instruction = nil, ""
	v := &schema.Verify{By: schema.VerifyByTrainer}
	r.Steps = []schema.Step{{Name: "one", Instruction: "a", Verify: v}, {Name: "two", Instruction: "b", Verify: v}}
	res := b.result(t, r)
	if res.Reward == nil || *res.Reward != 0.75 || len(res.Steps) != 2 || *res.Steps[1].Reward != 0.5 || res.Metrics["one/n"] != 2 || res.Metrics["two/n"] != 2 {
		t.Fatalf("got %+v, fault %v", res, res.Fault)
	}
}
