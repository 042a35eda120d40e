package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// TestABlackBoxCallsItsModelItself checks a rollout without a gate: only its
// outcome is known.
func TestABlackBoxCallsItsModelItself(t *testing.T) {
	t.Parallel()
	called := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		called = r.URL.Path + " " + r.Header.Get("Authorization")
	}))
	defer srv.Close()
	agent := func(ctx context.Context, p *dummy.Proc) int {
		if strings.HasPrefix(p.Env["OPENAI_BASE_URL"], srv.URL) { // the sandbox has its own loopback device
			return 2
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", nil)
		if err != nil {
			return 1
		}
		req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 1
		}
		res.Body.Close()
		_, _ = io.WriteString(p.Stdout, "my key is "+p.Env["OPENAI_API_KEY"]+"\n")
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": agent}), func(c *worker.Config) {
		c.Upstreams = []models.Upstream{{Name: "lab", Trainers: []string{"alpha"}, URL: srv.URL, Key: "sk-of-the-lab"}, {Name: "theirs", Trainers: []string{"beta"}}}
		c.Caps.Networks = []string{schema.NetworkOpen}
	})
	r := request("alpha-1")
	r.Mode, r.Model.Upstream, r.Sandbox.Network = schema.ModeBlack, "lab", schema.NetworkOpen
	res := b.result(t, r)
	if res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 1 || len(res.Calls) != 0 || called != "/v1/chat/completions Bearer sk-of-the-lab" {
		t.Errorf("got %+v, the engine was called as %q", res, called)
	}
	for _, a := range res.Artifacts {
		data, err := b.trainer.Artifact(t.Context(), a)
		if err != nil || strings.Contains(string(data), "sk-of-the-lab") {
			t.Errorf("artifact %s: %v %s", a.Name, err, data)
		}
	}
	theirs := r
	theirs.ID, theirs.Model.Upstream = "alpha-2", "theirs"
	if res := b.result(t, theirs); res.Status != schema.StatusFailed || res.Fault == nil || res.Fault.Who != schema.WhoUser {
		t.Errorf("another trainer's engine: %+v", res.Fault)
	}
	for field, change := range map[string]func(*schema.Request){
		"sandbox.network": func(r *schema.Request) { r.Sandbox.Network = "" },
		"model.upstream":  func(r *schema.Request) { r.Mode = schema.ModeGate },
	} {
		bad := r
		bad.ID = "alpha-3"
		change(&bad)
		if err := b.trainer.Submit(t.Context(), []schema.Request{bad}); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// asking is an agent that sends one streamed request and prints each piece of
// the answer as it arrives.
func asking(ctx context.Context, p *dummy.Proc) int {
	body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", strings.NewReader(body))
	if err != nil {
		return 1
	}
	req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 1
	}
	defer res.Body.Close()
	if _, err := io.Copy(p.Stdout, res.Body); err != nil || res.StatusCode != http.StatusOK {
		return 1
	}
	return 0
}

// TestATransparentProxyStreams checks that the agent receives the engine's
// first words before the engine has ended, if the request asks for that.
func TestATransparentProxyStreams(t *testing.T) {
	t.Parallel()
	said, read := make(chan struct{}), make(chan struct{})
	agent := func(ctx context.Context, p *dummy.Proc) int {
		reading := &spy{Writer: p.Stdout, want: "first", seen: read}
		p.Stdout = reading
		return asking(ctx, p)
	}
	lab := models.Upstream{
		Name: "lab",
		Answer: func(ctx context.Context, _ *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
			if emit == nil {
				return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"whole"}`), FinishReason: "stop"}, nil
			}
			defer close(said)
			if err := emit(&schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"first"}`)}); err != nil {
				return nil, err
			}
			select {
			case <-read:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"first"}`), FinishReason: "stop"}, nil
		},
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": agent}), func(c *worker.Config) {
		c.Upstreams = []models.Upstream{lab}
	})
	r := request("alpha-1")
	r.Mode, r.Model.Upstream, r.Gate.Stream = schema.ModeProxy, "lab", schema.StreamPass
	if res := b.result(t, r); res.Reward == nil || res.Fault != nil || res.Calls[schema.TagAgent].Count != 1 {
		t.Errorf("got %+v", res)
	}
	<-said
	buffered := r
	buffered.ID, buffered.Gate.Stream = "alpha-2", ""
	res := b.result(t, buffered)
	if log := b.artifact(t, res, "agent.stdout.log"); res.Reward == nil || !strings.Contains(log, "whole") {
		t.Errorf("got %+v and %s", res, log)
	}
}

// spy reports when a text is written.
type spy struct {
	io.Writer
	want string
	seen chan struct{}
	once sync.Once
}

func (s *spy) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.want) {
		s.once.Do(func() { close(s.seen) })
	}
	return s.Writer.Write(p)
}

// TestAHeldProxyWaits checks that a trainer can hold a group even if it does
// not answer the calls itself. The agent's clock stands still.
func TestAHeldProxyWaits(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 8)
	lab := models.Upstream{Name: "lab", Answer: func(_ context.Context, c *schema.Call, _ func(*schema.Delta) error) (*schema.Reply, error) {
		asked <- c.Key
		return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}, nil
	}}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asking}), func(c *worker.Config) {
		c.Upstreams = []models.Upstream{lab}
	})
	r := request("alpha-1")
	r.Mode, r.Model.Upstream, r.Group = schema.ModeProxy, "lab", "old"
	r.Limits.AgentMS = 1500 // shorter than the hold
	other := r
	other.ID, other.Group = "alpha-2", "new"
	b.trainer.Hold(trainer.Selection{})
	harness.Eventually(t, "the worker knows of the hold", time.Minute, func() bool { return b.worker.State().Holds == 1 })
	if err := b.trainer.Submit(t.Context(), []schema.Request{r, other}); err != nil {
		t.Fatal(err)
	}
	b.trainer.Hold(trainer.Selection{Only: func(id schema.ID) bool { return id == "alpha-1" }})
	if key := <-asked; key != "alpha-2/1/1" {
		t.Fatalf("%s was asked, which is held", key)
	}
	b.trainer.Hold(trainer.Selection{Group: "old"})
	if res := b.next(t); res.ID != "alpha-2" || res.Fault != nil {
		t.Errorf("got %+v", res)
	}
	hold := time.NewTimer(2500 * time.Millisecond)
	select {
	case key := <-asked:
		t.Fatalf("%s was asked, which is held", key)
	case <-hold.C:
	}
	b.trainer.Resume()
	if key := <-asked; key != "alpha-1/1/1" {
		t.Fatalf("%s was asked", key)
	}
	if res := b.next(t); res.ID != "alpha-1" || res.Fault != nil || res.Reward == nil {
		t.Errorf("got %+v, its agent timed out while it was held?", res)
	}
}

// TestAStreamThatBreaksIsNotGoneOnWith checks that no second generation
// continues a broken stream: the agent has read the first part already.
func TestAStreamThatBreaksIsNotGoneOnWith(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	lab := models.Upstream{Name: "lab", Answer: func(_ context.Context, _ *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
		asked.Add(1)
		if err := emit(&schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"first"}`)}); err != nil {
			return nil, err
		}
		return nil, &schema.Fault{Code: "upstream", Message: "the stream broke off", Status: http.StatusBadGateway}
	}}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asking}), func(c *worker.Config) {
		c.Upstreams = []models.Upstream{lab}
	})
	r := request("alpha-1")
	r.Mode, r.Model.Upstream, r.Gate.Stream = schema.ModeProxy, "lab", schema.StreamPass
	res := b.result(t, r)
	log := b.artifact(t, res, "agent.stdout.log")
	if asked.Load() != 1 || strings.Count(log, "first") != 1 || !strings.Contains(log, `"error"`) || len(res.Committed) != 0 {
		t.Errorf("the engine was asked %d times, the agent read %s, committed is %v", asked.Load(), log, res.Committed)
	}
}

// TestARefusedAnswerOfAnUpstreamIsAskedAgain: two such answers cost time, the third in a
// row ends the rollout.
func TestARefusedAnswerOfAnUpstreamIsAskedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		stream  string
		refused int32 // answers before a good one
		asked   int32
		status  schema.Status
	}{
		"whole, twice":           {schema.StreamBuffer, 2, 3, schema.StatusDone},
		"whole, again and again": {schema.StreamBuffer, 9, 3, schema.StatusFailed},
		"a piece, twice":         {schema.StreamPass, 2, 3, schema.StatusDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			lab := models.Upstream{Name: "lab", Answer: func(_ context.Context, _ *schema.Call, emit func(*schema.Delta) error) (*schema.Reply, error) {
				content := `"ok"`
				if asked.Add(1) <= tt.refused {
					content = `7`
				}
				message := json.RawMessage(`{"role":"assistant","content":` + content + `}`)
				if emit != nil {
					if err := emit(&schema.Delta{V: 1, Delta: message}); err != nil {
						return nil, err
					}
				}
				return &schema.Reply{Message: message, FinishReason: "stop"}, nil
			}}
			b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asking}), func(c *worker.Config) {
				c.Upstreams = []models.Upstream{lab}
			})
			r := request("alpha-1")
			r.Mode, r.Model.Upstream, r.Gate.Stream = schema.ModeProxy, "lab", tt.stream
			res := b.result(t, r)
			if res.Status != tt.status || asked.Load() != tt.asked {
				t.Errorf("the rollout is %s after %d tries, want %s after %d: %+v", res.Status, asked.Load(), tt.status, tt.asked, res.Fault)
			}
			if tt.status == schema.StatusFailed && (res.Fault == nil || res.Fault.Code != schema.CodeBadAnswer || !strings.Contains(res.Fault.Message, "content")) {
				t.Errorf("the fault is %+v", res.Fault)
			}
		})
	}
}

// TestAWorkerLogsAnUpstreamThatIsAway: one line names the upstream and the reason, and
// does not come again with each try.
func TestAWorkerLogsAnUpstreamThatIsAway(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	tries := 0
	lab := models.Upstream{Name: "lab", Answer: func(context.Context, *schema.Call, func(*schema.Delta) error) (*schema.Reply, error) {
		if tries++; tries < 3 {
			f := schema.Faultf("call", schema.CodeUpstream, schema.WhoTrainer, "upstream lab: it cannot be reached")
			f.Status = http.StatusServiceUnavailable
			return nil, f
		}
		return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop"}, nil
	}}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": asking}), func(c *worker.Config) {
		c.Upstreams, c.Log = []models.Upstream{lab}, zerolog.New(zerolog.SyncWriter(&out))
	})
	r := request("alpha-1")
	r.Mode, r.Model.Upstream = schema.ModeProxy, "lab"
	if res := b.result(t, r); res.Reward == nil || res.Fault != nil {
		t.Errorf("got %+v", res)
	}
	b.stop()
	if n := strings.Count(out.String(), "upstream lab: it cannot be reached"); n != 1 || tries != 3 {
		t.Errorf("%d lines after %d tries:\n%s", n, tries, out.String())
	}
}
