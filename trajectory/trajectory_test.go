package trajectory_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

func pack(t testing.TB, lines ...any) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		data, ok := l.([]byte)
		if !ok {
			if data, err = json.Marshal(l); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := z.Write(append(data, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func raws(messages ...string) (out []json.RawMessage) {
	for _, m := range messages {
		out = append(out, json.RawMessage(m))
	}
	return out
}

func request(n int, tag string, base, keep int, messages ...string) *schema.TranscriptLine {
	q := &schema.Call{V: 1, Tag: tag, Dialect: "chat", Model: "policy", Base: base, Keep: keep, Messages: raws(messages...)}
	if base == 0 {
		q.Tools = json.RawMessage(`[{"type":"function","function":{"name":"bash"}}]`)
	}
	return &schema.TranscriptLine{At: 1795373044737 + int64(n)*1000, Call: n, Request: q}
}

func answer(n int, message string) *schema.TranscriptLine {
	return &schema.TranscriptLine{At: 1795373044999 + int64(n)*1000, Call: n, Gen: fmt.Sprint("g", n), MS: 262, Reply: &schema.Reply{
		V: 1, Message: json.RawMessage(message), FinishReason: "stop", Usage: schema.Usage{PromptTokens: 3, CompletionTokens: 2},
		PromptIDs: schema.PackTokenIDs([]int32{1, 2, 3}), CompletionIDs: schema.PackTokenIDs([]int32{7, 151643}), Logprobs: schema.PackLogprobs([]float32{-0.5, -1.25}),
		Versions: []schema.VersionSpan{{Version: "v7", Start: 0, End: 2}},
	}}
}

func result() *schema.Result {
	reward := 0.5
	return &schema.Result{
		ID: "alpha-1", Attempt: 2, Task: "t", Status: schema.StatusDone, Reward: &reward, Agent: "pi", AgentVersion: "1.2.3",
		Committed: []schema.Committed{{Call: 1, Gen: "g1"}, {Call: 2, Gen: "other"}},
	}
}

const (
	system         = `{"role":"system","content":"You are careful."}`
	user           = `{"role":"user","content":[{"type":"text","text":"Look at"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}`
	askingForTools = `{"role":"assistant","content":null,"reasoning_content":"Hm.","tool_calls":[{"id":"c1","type":"function","function":{"name":"bash","arguments":"{\"command\":\"ls\"}"}},{"id":"c2","type":"custom","custom":{"name":"patch","input":"*** Begin"}}]}`
	again          = `{"role":"assistant","content":"","tool_calls":[{"id":"c1","function":{"name":"bash","arguments":"{}"}},{"id":"c2","function":{"name":"patch","arguments":""}}]}`
	got1           = `{"role":"tool","tool_call_id":"c1","content":"a.txt"}`
	got2           = `{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"ok"}]}`
)

// conversation has a title, two turns of the agent with tool results, a
// subagent of two turns, a refused call, and a rewritten context.
func conversation() []any {
	return []any{
		request(1, schema.TagAux, 0, 0, `{"role":"user","content":"A title, please."}`), answer(1, `{"role":"assistant","content":"A title"}`),
		request(2, schema.TagAgent, 0, 0, system, user), answer(2, askingForTools),
		&schema.TranscriptLine{Tool: "lookup", Arguments: json.RawMessage(`{}`), Text: "x"},
		request(3, schema.TagAgent, 2, 2, again, got1, got2),
		request(4, schema.TagSubagent, 2, 1, `{"role":"user","content":"Find it."}`), answer(4, `{"role":"assistant","content":"Where?"}`),
		request(5, schema.TagSubagent, 4, 2, `{"role":"assistant","content":"Where?"}`, `{"role":"user","content":"There."}`), answer(5, `{"role":"assistant","content":"Found."}`),
		&schema.TranscriptLine{Call: 3, Gen: "g3", Fault: &schema.Fault{Code: schema.CodeCallCap, Message: "enough"}},
		request(6, schema.TagAgent, 3, 1, `{"role":"user","content":"Summary: a.txt is there."}`, got1), answer(6, `{"role":"assistant","content":"Done."}`),
		&schema.TranscriptLine{LeftOut: 3},
	}
}

func convert(t *testing.T, lines ...any) *trajectory.ATIF {
	t.Helper()
	out, err := trajectory.Convert(bytes.NewReader(pack(t, lines...)), result())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestConversationsAreKeptApart(t *testing.T) {
	a := convert(t, conversation()...)
	var kinds []string
	for _, s := range a.Steps {
		kinds = append(kinds, s.Source)
	}
	if got := strings.Join(kinds, " "); got != "system user agent system user agent" {
		t.Fatalf("the agent's own steps are %s", got)
	}
	s := a.Steps[2]
	if s.Reasoning != "Hm." || len(s.ToolCalls) != 2 || string(s.ToolCalls[0].Arguments) != `{"command":"ls"}` || string(s.ToolCalls[1].Arguments) != `{"input":"*** Begin"}` || s.ToolCalls[1].Name != "patch" {
		t.Errorf("got %+v", s)
	}
	if o := s.Observation; o == nil || len(o.Results) != 2 || o.Results[0].Content.Text != "a.txt" || o.Results[1].SourceCallID != "c2" {
		t.Errorf("the tools' results: %+v", o)
	}
	if m := s.Metrics; m == nil || m.PromptIDs.Len() != 3 || m.CompletionIDs.Unpack()[1] != 151643 || m.Logprobs.Unpack()[1] != -1.25 {
		t.Errorf("got %+v", m)
	}
	if s.Extra["committed"] != false || s.Timestamp != "2026-11-22T18:44:06.999Z" {
		t.Errorf("got %v, %v", s.Extra, s.Timestamp)
	}
	if len(a.Subagents) != 2 || a.Subagents[0].TrajectoryID != "aux-1" || a.Subagents[1].TrajectoryID != "subagent-1" || len(a.Subagents[1].Steps) != 4 {
		t.Errorf("got %+v", a.Subagents)
	}
	if a.Subagents[0].Steps[1].Extra["committed"] != true {
		t.Errorf("got %+v", a.Subagents[0].Steps[1])
	}
	if f := a.FinalMetrics; f.PromptTokens != 6 || f.Steps != 6 || !strings.Contains(a.Notes, "3 lines") {
		t.Errorf("got %+v, %q", f, a.Notes)
	}
}

// validate checks a trajectory with Harbor's own model.
func validate(t *testing.T, a []byte) {
	t.Helper()
	python := testenv.HarborPython(t)
	cmd := exec.CommandContext(t.Context(), python, "-c", "import sys,json\nfrom harbor.models.trajectories import Trajectory\n"+
		"for line in sys.stdin: print(len(Trajectory.model_validate(json.loads(line)).steps))")
	cmd.Stdin = bytes.NewReader(a)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("harbor refuses it: %v\n%s\n%s", err, said, a)
	}
}

func TestHarborReadsIt(t *testing.T) {
	odd := answer(2, `{"role":"assistant","content":"","tool_calls":[{"id":"","function":{"name":"x","arguments":"[1]"}},{"id":"d","function":{"name":"y","arguments":"no"}},{"id":"d","function":{"name":"z"}}]}`)
	odd.Reply.Logprobs = schema.PackLogprobs([]float32{float32(math.Inf(-1)), -1})
	sound := `{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}},{"type":"file","file":{}},{"type":"image_url","image_url":{"url":"https://x.example/a.tiff"}}]}`
	var all bytes.Buffer
	for _, lines := range [][]any{
		conversation(),
		{request(1, schema.TagAux, 0, 0, user)},
		{request(2, schema.TagAgent, 0, 0, sound, `{"role":"tool","tool_call_id":"never","content":null}`, `7`, `{"role":"assistant"}`), odd,
			request(3, schema.TagAgent, 2, 1, `{"role":"tool","tool_call_id":"d","content":"1"}`, `{"role":"tool","tool_call_id":"d","content":"2"}`)},
	} {
		if err := trajectory.Write(&all, bytes.NewReader(pack(t, lines...)), result()); err != nil {
			t.Fatal(err)
		}
	}
	older := convert(t, conversation()...)
	if !older.As17() || older.SchemaVersion != "ATIF-v1.7" || older.Subagents[0].SchemaVersion != "ATIF-v1.7" {
		t.Errorf("got version %s", older.SchemaVersion)
	}
	if err := json.NewEncoder(&all).Encode(older); err != nil {
		t.Fatal(err)
	}
	validate(t, all.Bytes())
}

func TestAudioNeedsTheNewerVersion(t *testing.T) {
	for _, role := range []string{"user", "tool"} {
		a := convert(t, request(1, schema.TagAgent, 0, 0, `{"role":"`+role+`","content":[{"type":"text","text":"x"},{"type":"input_audio","input_audio":{"data":"AAAA","format":"mp3"}}]}`), answer(1, again))
		if a.As17() || a.SchemaVersion != "ATIF-v1.8" {
			t.Errorf("%s: got version %s", role, a.SchemaVersion)
		}
	}
}

func TestBrokenTranscripts(t *testing.T) {
	whole := pack(t, conversation()...)
	var bad *trajectory.TranscriptError
	for name, data := range map[string][]byte{"no zstd": []byte("{}"), "no JSON": pack(t, []byte("{"))} {
		if _, err := trajectory.Convert(bytes.NewReader(data), result()); !errors.As(err, &bad) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := trajectory.Convert(bytes.NewReader(pack(t)), result()); !errors.Is(err, trajectory.ErrNoCalls) {
		t.Errorf("got %v", err)
	}
	lines := append(conversation()[:4], []byte("{"))
	if a := convert(t, lines...); len(a.Steps) != 3 || !strings.Contains(a.Notes, "line 5") {
		t.Errorf("the readable part: %+v", a)
	}
	if _, err := trajectory.Convert(bytes.NewReader(whole[:len(whole)/2]), result()); err != nil && !errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
}

// A small artifact that unpacks to a huge transcript must not cost unbounded
// memory or time.
func TestATranscriptThatUnpacksWithoutEndIsCutShort(t *testing.T) {
	big := request(1, schema.TagAgent, 0, 0, `"`+strings.Repeat("x", 30<<20)+`"`)
	var lines []any
	for n := range 12 {
		big.Call = n + 1
		data, err := json.Marshal(big)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, data)
	}
	a := convert(t, lines...)
	if !strings.Contains(a.Notes, "left out") {
		t.Errorf("notes: %q", a.Notes)
	}
	if _, err := trajectory.Convert(bytes.NewReader(pack(t, []byte(strings.Repeat(" ", 65<<20)))), result()); err == nil {
		t.Error("a line without end was read")
	}
}

func FuzzConvert(f *testing.F) {
	var lines bytes.Buffer
	for _, l := range conversation() {
		data, err := json.Marshal(l)
		if err != nil {
			f.Fatal(err)
		}
		lines.Write(append(data, '\n'))
	}
	f.Add(lines.Bytes())
	f.Add([]byte(`{"call":1,"request":{"base":-1,"keep":5,"tag":"aux","messages":[null,{"role":"tool"}]}}` + "\n" + `{"call":1,"reply":{"message":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := trajectory.Convert(bytes.NewReader(pack(t, data)), result())
		if err != nil {
			return
		}
		if _, err := json.Marshal(a); err != nil {
			t.Fatal(err)
		}
		for i, s := range a.Steps {
			if s.ID != i+1 {
				t.Fatalf("step %d has number %d", i, s.ID)
			}
		}
	})
}
