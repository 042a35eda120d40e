package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/history"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// TestLongSessions runs real agents through conversations of more than fifty turns
// with a gate, a compaction, and a trainer that is restarted in the middle and so
// loses every base. An independent recorder in front of the gate sees the agent's
// requests, and a tap on NATS sees the messages to the trainer. Each call that the
// trainer rebuilt must have the normal form of the agent's request.
func TestLongSessions(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	for _, name := range []string{"claude-code", "codex", "opencode"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			longSession(t, name)
		})
	}
}

const longTurns = 55

// counting is a script with this number of turns.
func counting(t *testing.T) *replay.Script {
	t.Helper()
	var script strings.Builder
	script.WriteString("aux: A title\nsteps:\n")
	for i := range longTurns - 1 {
		fmt.Fprintf(&script, "- {text: 'Turn %d.', reasoning: 'I count.', run: 'seq %d %d'}\n", i, i, i+60)
	}
	script.WriteString("- text: Done.\n")
	model, err := replay.Parse([]byte(script.String()))
	if err != nil {
		t.Fatal(err)
	}
	return model
}

func longSession(t *testing.T, name string) {
	b := newBench(t)
	b.need(t, "local", name)
	b.worker(t, "", "--sandboxes", "local") // it gives the trainer its calls
	spec, err := agents.Find(agents.All(), name)
	if err != nil {
		t.Fatal(err)
	}
	model := counting(t)
	got := &asked{calls: map[string]*schema.Call{}}
	answer := func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
		got.add(c)
		if got.summarises(c) {
			return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"<summary>It counts.</summary>"}`), FinishReason: "stop"}, nil
		}
		if len(c.Tools) == 0 || !got.overflows() {
			return got.unique(model.Answer(ctx, c))
		}
		if name == "opencode" { // it compacts after a refused call
			return nil, &schema.Fault{Code: schema.CodeContext, Message: "too long", Status: 400}
		}
		reply, err := got.unique(model.Answer(ctx, c)) // the others compact when little room is left
		if err == nil {
			reply.Usage.PromptTokens = 195_000
		}
		return reply, err
	}
	var mu sync.Mutex
	stop := serveWith(t, b, answer)
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		stop()
	}()
	tap := tapBytes(t, b)

	r := schema.Request{ID: "local-1", Trainer: "local"}.WithDefaults()
	calls, err := modelcall.NewClient(b.nats.Worker(t, "w1"), "w1", "i1")
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	s := gate.Open(t.Context(), gate.Config{
		Rollout: r.ID, Attempt: 1, ModelName: "policy", Options: r.Gate, Model: calls.Caller(r, nil), Dialects: gate.Dialects(), Tag: spec.Tag, Log: zerolog.Nop(),
	})
	defer s.Close()
	rec := &bodies{next: s, halfway: func() { // the trainer dies between two calls
		mu.Lock()
		defer mu.Unlock()
		stop()
		stop = serveWith(t, b, answer)
	}}
	srv := httptest.NewServer(rec)
	defer srv.Close()
	runBare(t, spec, agents.Launch{
		BaseURL: srv.URL, Key: s.Key(), Model: "policy", Instruction: "Count.", Dir: t.TempDir(), Installed: agents.Cache{Dir: b.cache}.Path(spec),
	})

	all := gate.Dialects()
	spoken := all[slices.IndexFunc(all, func(d dialect.Dialect) bool { return d.Name() == spec.Dialect })]
	rec.mu.Lock()
	defer rec.mu.Unlock()
	total := got.compare(t, spoken, rec.all)
	if !got.summarised {
		t.Error("it did not compact its conversation")
	}
	last := len(rec.all[len(rec.all)-1])
	if len(rec.all) < longTurns {
		t.Errorf("%d requests, want %d", len(rec.all), longTurns)
	}
	travelled := tap.total()
	t.Logf("%d requests of %d bytes in all, the last one of %d; %d bytes of calls travelled, %.2f of the last one", len(rec.all), total, last, travelled, float64(travelled)/float64(last))
	if travelled > 3*last { // two whole calls: the first one, and the first to the new trainer
		t.Errorf("%d bytes travelled for a conversation of %d", travelled, last)
	}
}

// asked has the calls that the trainer rebuilt.
type asked struct {
	mu                    sync.Mutex
	calls                 map[string]*schema.Call
	compacted, summarised bool
}

// overflows returns true once, when the conversation has grown long.
func (a *asked) overflows() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := !a.compacted && len(a.calls) == longTurns/4
	a.compacted = a.compacted || first
	return first
}

// summarises returns true for the one call after it that asks for a summary.
func (a *asked) summarises(c *schema.Call) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.compacted || a.summarised || !bytes.Contains(bytes.ToLower(c.Messages[len(c.Messages)-1]), []byte("summary")) {
		return false
	}
	a.summarised = true
	return true
}

// unique gives the tool calls of an answer ids of their own, as engines do. The script
// begins again after the compaction, and the gate renames ids that come again.
func (a *asked) unique(reply *schema.Reply, err error) (*schema.Reply, error) {
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	reply.Message = bytes.ReplaceAll(reply.Message, []byte(`"call_`), fmt.Appendf(nil, `"call_%d_`, len(a.calls)))
	return reply, nil
}

func (a *asked) add(c *schema.Call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls[c.Key] = c
}

// compare compares every call with the body that the recorder saw, and returns the
// total size of those bodies in bytes.
func (a *asked) compare(t *testing.T, d dialect.Dialect, sent [][]byte) (total int) {
	t.Helper()
	for i, body := range sent {
		total += len(body)
		reader := history.NewReader(d, history.NewMemory(0), history.AsSent)
		read, err := reader.Read(bytes.NewReader(body), len(body))
		if err != nil {
			t.Fatal(err)
		}
		fresh, err := reader.Decode(httptest.NewRequest(http.MethodPost, "/", nil), read)
		if err != nil {
			t.Fatalf("request %d: %v", i+1, err)
		}
		c := a.calls[fmt.Sprintf("local-1/1/%d", i+1)]
		if c == nil {
			t.Fatalf("call %d did not reach the trainer", i+1)
		}
		if want := harness.HashesOf(&fresh.Call).Digest(); !bytes.Equal(want, harness.HashesOf(c).Digest()) || !bytes.Equal(want, c.Digest) {
			t.Errorf("call %d is not what the agent sent", i+1)
		}
	}
	return total
}

// bodies records the requests of an agent to a gate.
type bodies struct {
	next    http.Handler
	halfway func() // called before one request in the middle

	mu  sync.Mutex
	all [][]byte
}

func (b *bodies) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil && r.Method == http.MethodPost {
		b.mu.Lock()
		b.all = append(b.all, body)
		n := len(b.all)
		b.mu.Unlock()
		if n == longTurns/2 {
			b.halfway()
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	b.next.ServeHTTP(w, r)
}

// runBare runs an agent on this machine without a sandbox. That is safe because
// the script's tool calls only count.
func runBare(t *testing.T, spec agents.Spec, l agents.Launch) {
	t.Helper()
	if spec.Files != nil {
		files, err := spec.Files(l)
		if err != nil {
			t.Fatal(err)
		}
		for path, f := range files {
			if err := os.MkdirAll(path[:strings.LastIndex(path, "/")], 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, f.Data, f.Mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := spec.Command(l)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Stdin = t.TempDir(), strings.NewReader(c.Stdin)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + l.Dir}
	// The test needs a compaction, and Claude Code does not know the context
	// window of a model with this name.
	delete(c.Env, "OPENCODE_DISABLE_AUTOCOMPACT")
	c.Env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = "200000"
	for _, name := range slices.Sorted(maps.Keys(c.Env)) {
		cmd.Env = append(cmd.Env, name+"="+c.Env[name])
	}
	// opencode ends with status 1 after an overflow, though it compacted and
	// went on to the end.
	if out, err := cmd.CombinedOutput(); err != nil && !strings.Contains(string(out), `"text":"Done."`) {
		t.Fatalf("%v: %s", err, out[max(len(out)-3000, 0):])
	}
}

// counted sums the bytes of messages on the subjects of model calls.
type counted struct {
	mu sync.Mutex
	n  int
}

func (c *counted) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// tapBytes listens with the admin's credential.
func tapBytes(t *testing.T, b *bench) *counted {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(b.nats.AdminCreds())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.nats.URL(), key, nats.CustomInboxPrefix(broker.InboxFor("admin", "admin")))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	c := &counted{}
	if _, err := nc.Subscribe("rollout.*.llm.>", func(m *nats.Msg) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n += len(m.Data)
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return c
}
