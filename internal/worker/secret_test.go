package worker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// leaks writes the key of its session to every place that an agent can write to.
func leaks(ctx context.Context, p *dummy.Proc) int {
	key := p.Env["OPENAI_API_KEY"]
	long := strings.Repeat("x", 300<<10-20) // the line is cut inside of the key
	fmt.Fprintf(p.Stdout, "my key is %s\n%s%s\n", key, long[:256<<10-20], key)
	fmt.Fprintf(p.Stderr, "%s\n%s", key, strings.Repeat("y", 990-len(key)/2)) // the fault has the end only
	folder := "logs/artifacts/" + key
	if errors.Join(p.Files.MkdirAll(folder, 0o755), p.Files.WriteFile(folder+"/"+key+".txt", []byte("the key "+key), 0o644)) != nil {
		return 2
	}
	ask(ctx, p, "my key is "+key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(p.Env["OPENAI_BASE_URL"], "/v1")+gate.ToolsPath+"/quote", strings.NewReader(`{"text":"`+key+`"}`))
	if err != nil {
		return 3
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode == http.StatusNotFound {
		return 4
	}
	_ = res.Body.Close()
	return 1
}

// leak finds the key of a session in texts.
type leak struct {
	mu   sync.Mutex
	key  string // as the trainer has it from the agent
	seen map[string]string
}

func (l *leak) text(where, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[where] += text + "\n"
}

// TestNoKeyLeavesAWorker lets an agent, its model, a tool and a verifier quote the key
// of the session.
func TestNoKeyLeavesAWorker(t *testing.T) {
	t.Parallel()
	l, log := &leak{seen: map[string]string{}}, &bytes.Buffer{}
	b := newBench(t, map[string]dummy.Program{"agent": leaks, "quote": func(_ context.Context, p *dummy.Proc) int {
		fmt.Fprintln(p.Stdout, strings.Join(p.Args, " "))
		return 0
	}}, func(c *worker.Config) {
		c.Log = zerolog.New(zerolog.SyncWriter(log))
		c.Agents = slices.Clone(c.Agents)
		for i := range c.Agents {
			c.Agents[i].MCP = true // so that the agent command may have a tool
		}
	})
	b.trainer.Close()
	quotes := func(text string) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if i := strings.Index(text, "tg-"); i >= 0 && l.key == "" {
			l.key = text[i : i+35]
		}
		return &schema.Fault{Code: "refused", Message: "the trainer saw " + l.key, AgentMessage: l.key, Status: http.StatusBadRequest}
	}
	var err error
	b.trainer, err = trainer.Dial(t.Context(), trainer.Config{
		Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", AnswerAll: true, Log: zerolog.Nop(),
		Tools: map[string]trainer.Tool{"quote": func(_ context.Context, c *trainer.ToolCall) (string, error) { return "", quotes(string(c.Arguments)) }},
		Verify: func(ctx context.Context, h *trainer.Handle) (*schema.Verdict, error) {
			l.text("verification", fmt.Sprintf("%+v %v", h.Verification, h.Fault))
			out, err := h.Exec(ctx, trainer.Command{Args: []string{"quote", l.key}})
			l.text("operation", fmt.Sprintf("%s %v", out.Stdout, err))
			_, err = h.Read(ctx, "/nowhere/"+l.key)
			var fault *schema.Fault
			if !errors.As(err, &fault) {
				return nil, err
			}
			l.text("fault of an operation", fault.Error())
			return &schema.Verdict{Reward: number(1), Rewards: map[string]float64{l.key: 1}, Metrics: map[string]float64{l.key: 1}, Messages: []string{"it said " + l.key}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.trainer.Close)
	b.serve(t, func(_ context.Context, c *schema.Call) (*schema.Reply, error) {
		return nil, quotes(string(c.Messages[len(c.Messages)-1]))
	})
	events := b.watch(t, "alpha-1")
	r := byTrainer("alpha-1")
	r.Agent.Tools = []schema.ToolSpec{{Name: "quote", Parameters: json.RawMessage(`{"type":"object"}`)}}
	res := b.result(t, r)
	if res.Status != schema.StatusDone || res.Fault == nil || res.Fault.Code != schema.CodeRefused || !strings.Contains(res.Fault.Message, "the trainer saw [key]") || !slices.ContainsFunc(res.Notes, func(n string) bool { return strings.Contains(n, "it said [key]") }) {
		t.Errorf("status %s, fault %v, notes %q", res.Status, res.Fault, res.Notes)
	}
	l.text("result", mustJSON(t, res))
	for _, e := range events() {
		l.text("event "+string(e.Type), mustJSON(t, e))
	}
	for _, a := range res.Artifacts {
		l.text("name of an artifact", a.Name)
		l.text(a.Name, b.artifact(t, res, a.Name))
	}
	l.text("transcript", unzipped(t, b.artifact(t, res, res.Transcript)))
	l.text("names in an archive", strings.Join(namesIn(t, b.artifact(t, res, "logs/artifacts.tar")), " "))
	b.stop()
	l.text("log of the worker", log.String())
	_, metrics := harness.Get(t, b.serveMetrics(t)+"/metrics")
	l.text("metrics", metrics)
	if len(l.key) != 35 {
		t.Fatalf("the trainer saw the key %q", l.key)
	}
	for where, text := range l.seen {
		for _, part := range []string{l.key, l.key[:16], l.key[19:]} {
			if i := strings.Index(text, part); i >= 0 {
				t.Errorf("%s: %.300s", where, text[max(i-100, 0):])
			}
		}
	}
	for _, where := range []string{"verification", "operation", "fault of an operation", "result", "event llm", "event step", "event log", "event verify", "transcript", "names in an archive", "agent.stdout.log", "agent.stderr.log", "logs/artifacts.tar"} {
		if !strings.Contains(l.seen[where], "[key]") {
			t.Errorf("%s: the key was not quoted: %.300s", where, l.seen[where])
		}
	}
}

// TestNoKeyLeavesAWorkerWithAnUpstream lets an upstream quote a key in its refusal.
func TestNoKeyLeavesAWorkerWithAnUpstream(t *testing.T) {
	t.Parallel()
	log := &bytes.Buffer{}
	asks := func(ctx context.Context, p *dummy.Proc) int {
		ask(ctx, p, "my key is "+p.Env["OPENAI_API_KEY"])
		return 1
	}
	b := newBench(t, map[string]dummy.Program{"agent": asks}, func(c *worker.Config) {
		c.Log = zerolog.New(zerolog.SyncWriter(log))
		c.Upstreams = []models.Upstream{{Name: "lab", Answer: func(_ context.Context, c *schema.Call, _ func(*schema.Delta) error) (*schema.Reply, error) {
			return nil, &schema.Fault{Code: "upstream", Message: fmt.Sprintf("invalid prompt %s", c.Messages), Status: http.StatusBadRequest}
		}}}
	})
	r := request("alpha-1")
	r.Mode, r.Model.Upstream, r.Verify = schema.ModeProxy, "lab", nil
	result := mustJSON(t, b.result(t, r))
	b.stop()
	for where, text := range map[string]string{"result": result, "log": log.String()} {
		if !strings.Contains(text, "my key is [key]") {
			t.Errorf("%s: the key was not quoted: %s", where, text)
		}
		if strings.Contains(text, "my key is tg-") {
			t.Errorf("%s: %s", where, text)
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func unzipped(t *testing.T, data string) string {
	t.Helper()
	z, err := zstd.NewReader(strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	lines, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(lines)
}

// namesIn returns the names in an archive, which must be whole.
func namesIn(t *testing.T, data string) (names []string) {
	t.Helper()
	for r := tar.NewReader(strings.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}
