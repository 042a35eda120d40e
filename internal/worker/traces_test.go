package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/collector"
	"github.com/turngate/turngate/internal/traces/export"
	"github.com/turngate/turngate/internal/worker"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trainer"
)

// parent is the span of a trainer that submits.
var parent = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 2, 3}, SpanID: trace.SpanID{4, 5, 6}, TraceFlags: trace.FlagsSampled}) //nolint:gochecknoglobals // a constant

// exporting returns a bench with a worker that exports, and a function that ends the worker and
// sends the spans and metrics that are left.
func exporting(t *testing.T, change ...func(*worker.Config)) (b *bench, flush func()) {
	t.Helper()
	exported, err := export.FromEnv(t.Context(), "w1", "test", zerolog.Nop())
	harness.Must(t, err)
	change = append(change, func(c *worker.Config) { c.Traces, c.CallMetrics = exported.Tracer("w1"), exported.CallMetrics() })
	b = newBench(t, shells(map[string]dummy.Program{"prepare": exits(0), "verify": reward("0.5")}, map[string]dummy.Program{"agent": asks(2)}), change...)
	return b, func() {
		b.stop()
		exported.Close()
	}
}

// byName returns the only span with a name.
func byName(t *testing.T, all []collector.Span, name string) collector.Span {
	t.Helper()
	var found []collector.Span
	for _, s := range all {
		if s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans are called %q, among %d", len(found), name, len(all))
	}
	return found[0]
}

// tree draws the spans under a parent, each with those under it.
func tree(all []collector.Span, under string) string {
	var parts []string
	for _, s := range all {
		if s.Parent == under {
			parts = append(parts, s.Name+tree(all, s.ID))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "(" + strings.Join(parts, " ") + ")"
}

// TestTheSpansOfARollout runs a rollout with both protocols. Its spans are one tree under the
// trainer's own span, also through the collector of OpenTelemetry.
func TestTheSpansOfARollout(t *testing.T) {
	for _, name := range []string{"grpc", "http/protobuf", "grpc through otelcol", "http/protobuf through otelcol"} {
		t.Run(name, func(t *testing.T) {
			protocol, _, through := strings.Cut(name, " ")
			c := collector.Start(t)
			if through {
				c.Through(t)
			}
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", map[string]string{"grpc": c.GRPC, "http/protobuf": c.HTTP}[protocol])
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "team=a")
			var log bytes.Buffer
			b, flush := exporting(t, func(c *worker.Config) { c.Log = zerolog.New(zerolog.SyncWriter(&log)) })
			seen := make(chan trace.SpanContext, 10)
			b.serve(t, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
				seen <- trace.SpanContextFromContext(ctx)
				return ok(ctx, c)
			})
			r := request("alpha-1")
			r.Setup, r.Group, r.Model.Name = []schema.Command{{Run: "prepare"}}, "g", "m"
			began := time.Now()
			harness.Must(t, b.trainer.Submit(trace.ContextWithRemoteSpanContext(t.Context(), parent), []schema.Request{r}))
			if res := b.next(t); res.Status != schema.StatusDone {
				t.Fatalf("got %+v", res)
			}
			flush()
			all := c.Spans()
			want := "(rollout(queue attempt(create upload setup invoke_agent command(chat m chat m) artifacts verify transcript commit)))"
			if got := tree(all, parent.SpanID().String()); got != want || len(all) != 13 {
				t.Fatalf("%d spans: %s", len(all), got)
			}
			for _, s := range all {
				if s.Trace != parent.TraceID().String() || s.StartTimeUnixNano < uint64(began.Add(-time.Second).UnixNano()) || s.EndTimeUnixNano < s.StartTimeUnixNano || s.EndTimeUnixNano > uint64(time.Now().UnixNano()) {
					t.Errorf("%s: trace %s from %d to %d", s.Name, s.Trace, s.StartTimeUnixNano, s.EndTimeUnixNano)
				}
				if s.Resource["service.name"] != "turngate" || s.Resource["service.instance.id"] != "w1" || s.Resource["team"] != "a" {
					t.Errorf("resource %v", s.Resource)
				}
				for key, v := range s.Of {
					if text, ok := v.(string); ok && (strings.Contains(text, "question") || key == "gen_ai.input.messages" || key == "gen_ai.output.messages") {
						t.Errorf("%s has the content %s: %q", s.Name, key, text)
					}
				}
			}
			attempt, agent := byName(t, all, "attempt"), byName(t, all, "invoke_agent command")
			for _, x := range []struct {
				of   collector.Span
				key  string
				want any
			}{
				{byName(t, all, "rollout"), "turngate.rollout.id", "alpha-1"}, {byName(t, all, "rollout"), "turngate.group", "g"}, {byName(t, all, "rollout"), "turngate.status", "done"},
				{attempt, "turngate.attempt", int64(1)}, {attempt, "turngate.worker", "w1"}, {attempt, "turngate.reward", 0.5},
				{agent, "gen_ai.operation.name", "invoke_agent"}, {agent, "gen_ai.agent.name", "command"}, {agent, "turngate.phase", "agent"}, {agent, "process.exit.code", int64(0)},
			} {
				if got := x.of.Of[x.key]; got != x.want {
					t.Errorf("%s of %s is %v, want %v", x.key, x.of.Name, got, x.want)
				}
			}
			calls := slices.DeleteFunc(slices.Clone(all), func(s collector.Span) bool { return s.Name != "chat m" })
			for i, s := range calls {
				got := <-seen
				if s.Of["turngate.call"] != int64(i+1) || s.Of["gen_ai.request.model"] != "m" || s.Of["gen_ai.usage.input_tokens"] != int64(5) || s.Of["gen_ai.usage.output_tokens"] != int64(2) || len(s.Of["gen_ai.response.finish_reasons"].([]any)) != 1 || s.Kind.String() != "SPAN_KIND_CLIENT" {
					t.Errorf("call %d: %v %v", i+1, s.Kind, s.Of)
				}
				if got.SpanID().String() != s.ID || got.TraceID() != parent.TraceID() || !got.IsRemote() || !got.IsSampled() {
					t.Errorf("the trainer's context of call %d has %v, not %s", i+1, got, s.ID)
				}
			}
			agree(t, c.Points(""), calls)
			if want := `"trace_id":"` + parent.TraceID().String() + `","span_id":"` + attempt.ID; !strings.Contains(log.String(), want) {
				t.Errorf("the log has no %s: %s", want, log.String())
			}
		})
	}
}

// agree checks that the metrics have the same calls as the spans: two, of the same model.
func agree(t *testing.T, points []collector.Point, calls []collector.Span) {
	t.Helper()
	of := map[string]any{"gen_ai.operation.name": "chat", "gen_ai.provider.name": "turngate", "gen_ai.request.model": "m"}
	tokens := maps.Clone(of)
	tokens["gen_ai.token.modality"] = "unknown"
	took := 0.0
	for _, s := range calls {
		took += time.Duration(s.EndTimeUnixNano - s.StartTimeUnixNano).Seconds()
	}
	got := map[string]collector.Point{}
	for _, p := range points {
		got[p.Metric] = p
		if p.Resource["service.name"] != "turngate" || p.Resource["service.instance.id"] != "w1" || p.Resource["team"] != "a" {
			t.Errorf("resource %v", p.Resource)
		}
	}
	duration, input, output := got["gen_ai.client.inference.duration"], got["gen_ai.client.inference.usage.input_tokens"], got["gen_ai.client.inference.usage.output_tokens"]
	if len(points) != 3 || duration.Count != 2 || math.Abs(duration.Sum-took) > took/100 || !maps.Equal(duration.Of, of) {
		t.Errorf("%d series, the calls took %v s as spans: %+v", len(points), took, duration)
	}
	if input.Sum != 10 || output.Sum != 4 || !maps.Equal(input.Of, tokens) || !maps.Equal(output.Of, tokens) {
		t.Errorf("tokens %+v, %+v", input, output)
	}
}

// TestTheMetricsOfCalls runs an agent with a call that is answered in pieces, a call that
// its trainer refuses, and without an export of spans.
func TestTheMetricsOfCalls(t *testing.T) {
	c := collector.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", c.HTTP+"/v1/metrics")
	exported, err := export.FromEnv(t.Context(), "w1", "test", zerolog.Nop())
	harness.Must(t, err)
	agent := func(ctx context.Context, p *dummy.Proc) int {
		for _, text := range []string{"in pieces", "refused"} {
			chat(ctx, p, map[string]any{"model": "m", "stream": text == "in pieces", "messages": []any{map[string]string{"role": "user", "content": text}}})
		}
		return 0
	}
	b := newBench(t, map[string]dummy.Program{"agent": agent}, func(c *worker.Config) { c.CallMetrics = exported.CallMetrics() })
	b.answer(t, func(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
		if !c.Stream {
			return nil, &schema.Fault{Code: "refused", Message: "no", Status: http.StatusBadRequest}
		}
		if err := c.Emit(&schema.Delta{Delta: json.RawMessage(`{"content":"ok"}`)}); err != nil {
			return nil, err
		}
		r, err := ok(t.Context(), &c.Call)
		r.Usage.CachedTokens = 3
		return r, err
	})
	r := request("alpha-1")
	r.Verify = nil
	b.result(t, r)
	b.stop()
	exported.Close()
	got := map[string]collector.Point{} // by metric and error
	for _, p := range c.Points("") {
		code, _ := p.Of["error.type"].(string)
		got[strings.TrimPrefix(p.Metric, "gen_ai.client.inference.")+" "+code] = p
	}
	first, answered, refused := got["time_to_first_chunk "], got["duration "], got["duration refused"]
	if len(got) != 6 || first.Count != 1 || answered.Count != 1 || refused.Count != 1 || first.Sum <= 0 || first.Sum > answered.Sum {
		t.Errorf("got %+v", got)
	}
	if input, output, cached := got["usage.input_tokens "].Sum, got["usage.output_tokens "].Sum, got["usage.cache_read.input_tokens "].Sum; input != 5 || output != 2 || cached != 3 {
		t.Errorf("%v tokens of prompts, %v of answers, %v cached", input, output, cached)
	}
	if all := c.Spans(); len(all) > 0 {
		t.Errorf("%d spans came", len(all))
	}
}

// TestATraceWithoutAParent runs a rollout that is submitted without a trace: the rollout's span
// is the root, and the texts are in the spans of calls because they are asked for.
func TestATraceWithoutAParent(t *testing.T) {
	c := collector.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.HTTP)
	b, flush := exporting(t, func(c *worker.Config) { c.TraceContent = true })
	b.serve(t, ok)
	b.result(t, request("alpha-1"))
	flush()
	all := c.Spans()
	if got := tree(all, ""); !strings.HasPrefix(got, "(rollout(queue attempt(") {
		t.Fatalf("got %s", got)
	}
	var texts []string
	for _, s := range all {
		for _, key := range []string{"gen_ai.input.messages", "gen_ai.output.messages"} {
			if text, ok := s.Of[key].(string); ok {
				texts = append(texts, text)
			}
		}
	}
	question, answer := `[{"role":"user","parts":[{"type":"text","content":"question 0"}]}]`, `[{"role":"assistant","parts":[{"type":"text","content":"ok"}],"finish_reason":"stop"}]`
	if want := []string{question, answer, strings.Replace(question, "0", "1", 1), answer}; !slices.Equal(texts, want) {
		t.Errorf("the texts are %q", texts)
	}
}

// TestHostileTextsInSpans runs an agent that calls a tool with bytes that are not UTF-8,
// and writes the key of its session there and as the name of its model.
func TestHostileTextsInSpans(t *testing.T) {
	c := collector.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.HTTP)
	spans, err := export.FromEnv(t.Context(), "w1", "test", zerolog.Nop())
	harness.Must(t, err)
	keys := make(chan string, 1)
	agent := func(ctx context.Context, p *dummy.Proc) int {
		key := p.Env["OPENAI_API_KEY"]
		keys <- key
		p.Env["TURNGATE_MODEL"] = strings.Repeat("m", 190) + key // a name is cut at 200 bytes
		ask(ctx, p, "question")
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(p.Env["OPENAI_BASE_URL"], "/v1")+gate.ToolsPath+"/good", strings.NewReader("{\"x\":\"\xff "+key+"\"}"))
		if err != nil {
			return 1
		}
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 1
		}
		_ = res.Body.Close()
		return 0
	}
	b := newBench(t, map[string]dummy.Program{"agent": agent}, func(c *worker.Config) {
		c.Traces, c.TraceContent, c.Agents = spans.Tracer("w1"), true, slices.Clone(c.Agents)
		for i := range c.Agents {
			c.Agents[i].MCP = true // so that the agent command may have a tool
		}
	})
	b.trainer.Close()
	b.trainer, err = trainer.Dial(t.Context(), trainer.Config{
		Broker: b.nats.Trainer(t, "alpha"), Name: "alpha", AnswerAll: true, Log: zerolog.Nop(),
		Tools: map[string]trainer.Tool{"good": func(context.Context, *trainer.ToolCall) (string, error) { return "yes", nil }},
	})
	harness.Must(t, err)
	t.Cleanup(b.trainer.Close)
	b.serve(t, ok)
	r := request("alpha-1")
	r.Verify = nil
	r.Agent.Tools = []schema.ToolSpec{{Name: "good", Parameters: json.RawMessage(`{"type":"object"}`)}}
	b.result(t, r)
	b.stop()
	spans.Close()
	key, all := <-keys, c.Spans()
	if got := byName(t, all, "execute_tool good").Of["gen_ai.tool.call.arguments"]; got == nil || !strings.Contains(got.(string), "\ufffd") {
		t.Errorf("the arguments are %q", got)
	}
	for _, s := range all {
		for name, v := range s.Of {
			if text, ok := v.(string); strings.Contains(s.Name, key[:10]) || ok && strings.Contains(text, key[:10]) {
				t.Errorf("%s: %s has the key: %v", s.Name, name, v)
			}
		}
	}
}

// TestSpansThatAreNotWanted runs rollouts without any span: of a trace that is not
// sampled, and on workers that export no spans. The trainer's calls have the trace, and
// metrics are exported if they are asked for.
func TestSpansThatAreNotWanted(t *testing.T) {
	for name, want := range map[string]struct{ spans, metrics string }{"not sampled": {"otlp", "otlp"}, "no spans": {"none", "otlp"}, "nothing": {"none", "none"}} {
		t.Run(name, func(t *testing.T) {
			c := collector.Start(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.HTTP)
			t.Setenv("OTEL_TRACES_EXPORTER", want.spans)
			t.Setenv("OTEL_METRICS_EXPORTER", want.metrics)
			b, flush := exporting(t)
			seen := make(chan trace.SpanContext, 10)
			b.serve(t, func(ctx context.Context, c *schema.Call) (*schema.Reply, error) {
				seen <- trace.SpanContextFromContext(ctx)
				return ok(ctx, c)
			})
			harness.Must(t, b.trainer.Submit(trace.ContextWithRemoteSpanContext(t.Context(), parent.WithTraceFlags(0)), []schema.Request{request("alpha-1")}))
			b.next(t)
			flush()
			if got := <-seen; got.TraceID() != parent.TraceID() || got.IsSampled() || want.spans == "none" && got.SpanID() != parent.SpanID() {
				t.Errorf("the call has %v", got)
			}
			if all := c.Spans(); len(all) > 0 {
				t.Errorf("%d spans came", len(all))
			}
			var measured uint64
			for _, p := range c.Points("gen_ai.client.inference.duration") {
				measured += p.Count
			}
			if measured != map[string]uint64{"otlp": 2, "none": 0}[want.metrics] {
				t.Errorf("%d calls are in the metrics", measured)
			}
		})
	}
}

// TestACollectorThatIsAwayDelaysNothing runs a rollout on a worker with a collector that never
// answers. The worker's end waits for it no longer than its bound.
func TestACollectorThatIsAwayDelaysNothing(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	b, flush := exporting(t)
	b.serve(t, ok)
	if res := b.result(t, request("alpha-1")); res.Status != schema.StatusDone || res.Reward == nil {
		got, _ := json.Marshal(res)
		t.Errorf("got %s", got)
	}
	flush()
}
