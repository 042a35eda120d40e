package matrix_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/trajectory"
)

func rawJSON(text string) json.RawMessage { return json.RawMessage(text) }

// cell is one rollout: a mode, an agent, and whether answers are streamed.
type cell struct {
	mode   mode
	agent  string
	stream string
	id     schema.ID
}

// TestMatrix runs every mode with every agent, whole and streamed. The variables
// TURNGATE_MATRIX_AGENTS and TURNGATE_MATRIX_MODES choose some, by their names with
// commas between them; without the first, four agents run. opencode:buffer is this agent
// with streams of this form alone, where a mode has streams.
func TestMatrix(t *testing.T) {
	testenv.Slow(t)
	names, forms := agentNames(t)
	chosen := chosenModes(t)
	e, url := serveEngine(t, modes())
	tr := dial(t, start(t))
	upstreams := map[string]*upstream.Upstream{}
	var cells []*cell
	byID := map[schema.ID]*cell{}
	for _, m := range chosen {
		u, err := upstream.New(upstream.Config{URL: url + "/" + m.name, Name: m.name, KeepReasoning: m.thinks})
		harness.Must(t, err)
		upstreams[m.name] = u
		for _, agent := range names {
			for _, stream := range []string{schema.StreamBuffer, schema.StreamPass} {
				if m.whole && stream == schema.StreamPass || !m.whole && forms[agent] != "" && forms[agent] != stream {
					continue
				}
				c := &cell{mode: m, agent: agent, stream: stream, id: schema.ID(fmt.Sprintf("local-%d", len(cells)))}
				cells, byID[c.id] = append(cells, c), c
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		_ = tr.Serve(ctx, func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
			key, err := schema.ParseKey(c.Key)
			if err != nil {
				return nil, err
			}
			in := byID[key.Rollout]
			if c.Stream && in.stream == schema.StreamPass {
				return upstreams[in.mode.name].Answer(ctx, &c.Call, c.Emit)
			}
			return upstreams[in.mode.name].Answer(ctx, &c.Call, nil)
		})
	})
	t.Cleanup(func() { cancel(); served.Wait() })
	submit(t, tr, cells)
	found := map[schema.ID]*outcome{}
	waiting, stop := context.WithTimeout(t.Context(), 60*time.Minute)
	defer stop()
	for range cells {
		r, err := tr.NextResult(waiting)
		harness.Must(t, err)
		found[r.ID] = read(t, tr, r, e.requests(r.ID))
	}
	for _, c := range cells {
		t.Run(c.mode.name+"/"+c.agent+"/"+c.stream, func(t *testing.T) {
			o := found[c.id]
			o.wrong = c.mode.want.differences(o, c.agent)
			for _, w := range o.wrong {
				t.Error(w)
			}
			if len(o.wrong) > 0 {
				t.Logf("fault %v, exit %v, notes %q\nrequests: %s\nfindings: %v\nit said: %s", o.Fault, o.Exit, o.Notes, strings.Join(e.asked[c.id], "\n"), o.findings, o.said)
			}
		})
	}
	t.Log("\n" + table(chosen, names, cells, found))
}

// agentNames returns the agents to run, and the form of the streams of those that have
// only one.
func agentNames(t *testing.T) (names []string, forms map[string]string) {
	t.Helper()
	forms = map[string]string{}
	names = strings.Split(os.Getenv("TURNGATE_MATRIX_AGENTS"), ",")
	switch names[0] {
	case "":
		names = []string{"opencode", "pi", "codex", "claude-code"}
	case "all":
		names = nil
		for _, s := range agents.All() {
			if s.Dialect != "" && !s.AnyProgram {
				names = append(names, s.Name)
			}
		}
	}
	for i, name := range names {
		name, form, _ := strings.Cut(name, ":")
		if form != "" && form != schema.StreamBuffer && form != schema.StreamPass {
			t.Fatalf("TURNGATE_MATRIX_AGENTS: %s:%s: a form is %s or %s", name, form, schema.StreamBuffer, schema.StreamPass)
		}
		names[i], forms[name] = name, form
		s, err := agents.Find(agents.All(), name)
		harness.Must(t, err)
		if !(agents.Cache{Dir: agentCache()}).Installed(s) {
			testenv.Need(t, "agents", fmt.Errorf("%s: %w", name, agents.ErrNotInstalled))
		}
	}
	return names, forms
}

func agentCache() string {
	if dir := os.Getenv("TURNGATE_AGENTS"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "turngate-agents")
	}
	return filepath.Join(dir, "turngate", "agents")
}

func chosenModes(t *testing.T) []mode {
	t.Helper()
	all := modes()
	list := os.Getenv("TURNGATE_MATRIX_MODES")
	if list == "" {
		return all
	}
	var out []mode
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(all, func(m mode) bool { return m.name == name })
		if i < 0 {
			t.Fatalf("TURNGATE_MATRIX_MODES: no mode %q", name)
		}
		out = append(out, all[i])
	}
	return out
}

// start starts a server and a worker.
func start(t *testing.T) testenv.NATS {
	t.Helper()
	nats, binary := testenv.StartNATS(t, "local"), testenv.Binary(t)
	log := &harness.Buffer{}
	cmd := exec.Command(binary, "worker", "--nats", nats.URL(), "--creds", nats.AdmitWorker(t, "w1"), "--state", filepath.Join(t.TempDir(), "worker"), "--agents", agentCache(), "--sandboxes", "local", "--slots", "4")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = log, log, 10*time.Second
	harness.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // its status says that it was stopped
	})
	harness.Eventually(t, "a ready worker", 5*time.Minute, func() bool { return strings.Contains(log.String(), "worker is ready") })
	return nats
}

func dial(t *testing.T, nats testenv.NATS) *trainer.Trainer {
	t.Helper()
	tr, err := trainer.Dial(t.Context(), trainer.Config{Broker: nats.Trainer(t, "local"), Name: "local", Log: zerolog.Nop()})
	harness.Must(t, err)
	t.Cleanup(tr.Close)
	return tr
}

// submit submits the rollouts of all cells.
func submit(t *testing.T, tr *trainer.Trainer, cells []*cell) {
	t.Helper()
	task, err := tasks.Load(writeTask(t), tasks.Options{})
	harness.Must(t, err)
	bundle, err := tr.PutBundle(t.Context(), task.Bundle)
	harness.Must(t, err)
	var all []schema.Request
	for _, c := range cells {
		r := task.Request
		r.ID, r.Trainer, r.Agent.Name, r.Task.Bundle, r.Sandbox.Backend = c.id, "local", c.agent, bundle, "local"
		r.Gate.Stream, r.Gate.MaxCalls, r.Gate.MaxRepeats = c.stream, 40, maxRepeats
		all = append(all, r)
	}
	harness.Must(t, tr.Submit(t.Context(), all))
}

// writeTask makes a task that is solved by a file that is not empty.
func writeTask(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range map[string]string{
		"instruction.md": "Append hi to hello.txt.\n", "task.toml": "[agent]\ntimeout_sec = 300\n[environment]\nnetwork_mode = \"no-network\"\n",
		"tests/test.sh": "#!/bin/sh\ncat hello.txt\ntest -s hello.txt && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt\n",
	} {
		harness.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		harness.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return dir
}

// outcome is the result of a cell, with its rows.
type outcome struct {
	schema.Result
	requests int // that the engine got
	file     string
	rows     int
	tokens   trajectory.Tokens
	findings []trajectory.Finding
	said     string
	wrong    []string
}

func read(t *testing.T, tr *trainer.Trainer, r schema.Result, requests int) *outcome {
	t.Helper()
	o := &outcome{Result: r, requests: requests}
	if i := slices.IndexFunc(r.Phases, func(p schema.Phase) bool { return p.Name == "verify" }); i >= 0 {
		lines := strings.Fields(r.Phases[i].Output)
		slices.Sort(lines)
		o.file = strings.Join(lines, " ")
	}
	o.said = schema.Clip(artifact(t, tr, r, "agent.stdout.log")+artifact(t, tr, r, "agent.stderr.log"), 3000)
	rows, err := trajectory.Read(strings.NewReader(artifact(t, tr, r, r.Transcript)), &r, trajectory.Options{})
	if err != nil {
		o.said += fmt.Sprint("\nno rows: ", err)
		return o
	}
	for range rows.Rows() {
		o.rows++
	}
	o.tokens, o.findings = rows.Tokens, rows.Findings
	return o
}

func artifact(t *testing.T, tr *trainer.Trainer, r schema.Result, names ...string) string {
	t.Helper()
	for _, a := range r.Artifacts {
		if slices.Contains(names, a.Name) {
			data, err := tr.Artifact(t.Context(), a)
			harness.Must(t, err)
			return string(data)
		}
	}
	return ""
}

// differences says in which points an outcome is not the right one.
func (w want) differences(o *outcome, agent string) (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if slices.Contains(w.givesUp, agent) && o.Fault != nil && o.Fault.Code == schema.CodeRefused {
		return nil
	}
	code := ""
	if o.Fault != nil && (o.Fault.Code != schema.CodeExit || !slices.Contains(w.exits, agent)) {
		code = o.Fault.Code
	}
	if code != w.fault {
		add("the fault is %v, want %q", o.Fault, w.fault)
	}
	verified := w.fault == "" || w.fault == schema.CodeRepeats
	if verified && (o.Reward == nil || *o.Reward != 1 || o.Status != schema.StatusDone) || !verified && o.Reward != nil {
		add("status %s, reward %v", o.Status, o.Reward)
	}
	if !verified && o.Status != schema.StatusFailed {
		add("status %s", o.Status)
	}
	if verified && o.file != w.file {
		add("the file has %q, want %q", o.file, w.file)
	}
	calls := o.Calls[schema.TagAgent].Count
	if w.calls > 0 && calls != w.calls || w.calls == 0 && (calls < 1 || calls > w.most) {
		add("%d calls, want %d (at most %d)", calls, w.calls, w.most)
	}
	if o.requests > 20 {
		add("the engine got %d requests", o.requests)
	}
	switch lost := o.tokens.Untrained; {
	case w.untrained != "" && (o.tokens.Trained > 0 || len(lost) != 1 || lost[0].Reason != w.untrained):
		add("%s, want none, for the reason %s", o.tokens, w.untrained)
	case w.untrained == "" && (o.tokens.Sampled != o.tokens.Trained || verified && o.tokens.Sampled == 0):
		add("%s", o.tokens)
	}
	if w.rows > 0 && o.rows != w.rows {
		add("%d rows, want %d", o.rows, w.rows)
	}
	return wrong
}

// table has a row for each mode and a column for each agent: the number of calls,
// whole and streamed, and the wrong cells.
func table(all []mode, names []string, cells []*cell, found map[schema.ID]*outcome) string {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "mode\t%s\n", strings.Join(names, "\t"))
	for _, m := range all {
		row := m.name
		for _, agent := range names {
			var texts []string
			for _, c := range cells {
				if c.mode.name != m.name || c.agent != agent {
					continue
				}
				o := found[c.id]
				text := fmt.Sprintf("%d calls", o.Calls[schema.TagAgent].Count)
				if o.Fault != nil {
					text += " " + o.Fault.Code
				}
				if len(o.wrong) > 0 {
					text += " WRONG"
				}
				texts = append(texts, text)
			}
			row += "\t" + strings.Join(slices.Compact(texts), " | ")
		}
		fmt.Fprintln(w, row)
	}
	_ = w.Flush() // to a buffer
	return b.String()
}
