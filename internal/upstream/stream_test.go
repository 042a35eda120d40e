package upstream_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

func events(chunks ...string) string {
	return "data: " + strings.Join(chunks, "\n\ndata: ") + "\n\n"
}

// TestAStreamIsJoinedExactly: the joined pieces equal the answer without a
// stream, and each piece has its own ids.
func TestAStreamIsJoinedExactly(t *testing.T) {
	t.Parallel()
	var asked map[string]any
	u, _ := engine(t, func(w http.ResponseWriter, body map[string]any) {
		asked = body
		_, _ = io.WriteString(w, ": hello\n\n"+events(
			`{"prompt_token_ids":[1,2,3],"choices":[{"delta":{"role":"assistant","content":""}}]}`,
			`{"choices":[{"delta":{"reasoning_content":"so "},"token_ids":[5],"logprobs":{"content":[{"logprob":-0.5}]}}]}`,
			`{"choices":[{"delta":{"content":"hi"},"token_ids":[6,7],"logprobs":{"content":[{"logprob":-1},{"logprob":-2}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"bash","arguments":""}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":"}}]},"token_ids":[8],"logprobs":{"content":[{"logprob":-3}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}},{"index":1,"id":"c2","function":{"name":"ls","arguments":"{}"}}]}}]}`,
			`{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`,
			`{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`, `[DONE]`))
	})
	var pieces []string
	ids := 0
	r, err := u.Answer(t.Context(), call(), func(d *schema.Delta) error {
		pieces = append(pieces, string(d.Delta))
		if ids += d.CompletionIDs.Len(); d.CompletionIDs.Len() != d.Logprobs.Len() {
			t.Errorf("%s has %d ids and %d log-probs", d.Delta, d.CompletionIDs.Len(), d.Logprobs.Len())
		}
		return schema.Validate(d)
	})
	if err != nil {
		t.Fatal(err)
	}
	var message map[string]any
	if err := json.Unmarshal(r.Message, &message); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"role": "assistant", "content": "hi", "reasoning_content": "so ", "tool_calls": []any{
		map[string]any{"id": "c1", "type": "function", "function": map[string]any{"name": "bash", "arguments": `{"a":1}`}},
		map[string]any{"id": "c2", "type": "function", "function": map[string]any{"name": "ls", "arguments": `{}`}},
	}}
	if !reflect.DeepEqual(message, want) {
		t.Errorf("the message is %s", r.Message)
	}
	if !reflect.DeepEqual(r.CompletionIDs.Unpack(), []int32{5, 6, 7, 8}) || !reflect.DeepEqual(r.Logprobs.Unpack(), []float32{-0.5, -1, -2, -3}) ||
		!reflect.DeepEqual(r.PromptIDs.Unpack(), []int32{1, 2, 3}) || r.FinishReason != "tool_calls" || r.Usage.CompletionTokens != 4 || r.Versions[0].End != 4 {
		t.Errorf("got %+v", r)
	}
	if len(pieces) != 6 || ids != 4 || asked["stream"] != true || strings.Contains(string(r.Sampling), "stream") {
		t.Errorf("pieces %q with %d ids, asked %v, sampling %s", pieces, ids, asked, r.Sampling)
	}
}

// TestTwoNamesOfOneText: some versions of vLLM send each piece of reasoning under
// both names. A refusal comes in pieces like any other text.
func TestTwoNamesOfOneText(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		deltas []string
		want   string
	}{
		"both":    {[]string{`{"reasoning":"so ","reasoning_content":"so "}`, `{"reasoning":"it","reasoning_content":"it"}`, `{"content":"hi"}`}, `{"content":"hi","reasoning_content":"so it","role":"assistant"}`},
		"newer":   {[]string{`{"reasoning":"so "}`, `{"reasoning":"it","reasoning_content":null}`, `{"content":"hi"}`}, `{"content":"hi","reasoning":"so it","role":"assistant"}`},
		"refusal": {[]string{`{"refusal":"I can"}`, `{"refusal":"not"}`}, `{"content":null,"refusal":"I cannot","role":"assistant"}`},
	} {
		u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
			chunks := []string{`{"prompt_token_ids":[1],"choices":[{"delta":{"role":"assistant"},"token_ids":[5],"logprobs":{"content":[{"logprob":-1}]}}]}`}
			for _, d := range tt.deltas {
				chunks = append(chunks, `{"choices":[{"delta":`+d+`}]}`)
			}
			_, _ = io.WriteString(w, events(append(chunks, `{"choices":[{"delta":{},"finish_reason":"stop"}]}`, `[DONE]`)...))
		})
		r, err := u.Answer(t.Context(), call(), func(*schema.Delta) error { return nil })
		if err != nil || string(r.Message) != tt.want {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

// TestABrokenStreamIsAskedAgain, and a refusal is the same as without a stream.
func TestABrokenStreamIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int // of the engine
		body   string
		want   int // of the fault
	}{
		"cut off":          {200, events(`{"choices":[{"delta":{"content":"hi"}}]}`), 502},
		"no finish reason": {200, events(`{"choices":[{"delta":{"content":"hi"}}]}`, `[DONE]`), 502},
		"error inside":     {200, events(`{"error":{"message":"out of memory","code":500}}`), 500},
		"two choices":      {200, events(`{"choices":[{},{}]}`), 502},
		"index too large":  {200, events(`{"choices":[{"delta":{"tool_calls":[{"index":100000}]}}]}`), 502},
		"index below 0":    {200, events(`{"choices":[{"delta":{"tool_calls":[{"index":-1}]}}]}`), 502},
		"no JSON":          {200, events(`{`), 502},
		"refused":          {400, `{"error":{"message":"maximum context length is 5"}}`, 400},
		"busy":             {429, ``, 429},
	} {
		u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		})
		_, err := u.Answer(t.Context(), call(), func(*schema.Delta) error { return nil })
		var f *schema.Fault
		if !errors.As(err, &f) || f.Status != tt.want || schema.RetryableStatus(f.Status) != (tt.want != 400) {
			t.Errorf("%s: %v", name, err)
		}
	}
	u, _ := engine(t, func(w http.ResponseWriter, body map[string]any) {
		if body["stream_options"] != nil {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":{"message":"Unknown parameter: 'stream_options'."}}`)
			return
		}
		_, _ = io.WriteString(w, events(`{"prompt_token_ids":[1],"choices":[{"delta":{"content":"hi"},"token_ids":[5],"logprobs":{"content":[{"logprob":-1}]},"finish_reason":"stop"}]}`, `[DONE]`))
	})
	r, err := u.Answer(t.Context(), call(), func(*schema.Delta) error { return nil })
	if err != nil || !reflect.DeepEqual(r.Edits, []string{"stream_options"}) {
		t.Errorf("got %+v, %v", r, err)
	}
	enough := errors.New("enough")
	if _, err := u.Answer(t.Context(), call(), func(*schema.Delta) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("ended with %v", err)
	}
}

// TestOddPiecesOfCalls: pieces with the same index for all calls, without an index, in
// any order, with names and ids that are repeated, and arguments that are an object. The
// pieces that go out have an index for each call, and give the same calls as the answer.
func TestOddPiecesOfCalls(t *testing.T) {
	t.Parallel()
	const first, second = `{"id":"a","type":"function","function":{"name":"ls","arguments":"{\"x\":1}"}}`, `{"id":"b","type":"function","function":{"name":"ls","arguments":"{}"}}`
	for name, tt := range map[string]struct {
		deltas []string // tool_calls
		want   string
	}{
		"one index for all": {[]string{`{"index":0,"id":"a","function":{"name":"ls","arguments":"{\"x\""}}`, `{"index":0,"function":{"arguments":":1}"}}`, `{"index":0,"id":"b","function":{"name":"ls","arguments":"{}"}}`}, first + "," + second},
		"no index":          {[]string{`{"id":"a","function":{"name":"ls","arguments":"{\"x\""}}`, `{"function":{"arguments":":1}"}}`, `{"id":"b","function":{"name":"ls","arguments":"{}"}}`}, first + "," + second},
		"mixed":             {[]string{`{"index":1,"id":"b","function":{"name":"ls","arguments":"{"}}`, `{"index":0,"id":"a","function":{"name":"ls","arguments":"{\"x\""}}`, `{"index":1,"function":{"arguments":"}"}},{"index":0,"function":{"arguments":":1}"}}`}, first + "," + second},
		"from 1 on":         {[]string{`{"index":1,"id":"a","function":{"name":"ls","arguments":"{\"x\":1}"}}`, `{"index":2,"id":"b","function":{"name":"ls","arguments":"{}"}}`}, first + "," + second},
		"repeated":          {[]string{`{"index":0,"id":"a","type":"function","function":{"name":"ls","arguments":"{\"x\""}}`, `{"index":0,"id":"a","type":"function","function":{"name":"ls","arguments":":1}"}}`}, first},
		"other ids":         {[]string{`{"index":0,"id":"a","function":{"name":"ls","arguments":"{\"x\""}}`, `{"index":0,"id":"z","function":{"arguments":":1}"}}`}, first},
		"name in parts":     {[]string{`{"index":0,"id":"a","function":{"name":"l"}}`, `{"index":0,"function":{"name":"s","arguments":"{\"x\":1}"}}`}, first},
		"id at the end":     {[]string{`{"index":0,"function":{"name":"ls","arguments":"{\"x\":1}"}}`, `{"index":0,"id":"a","function":{}}`}, first},
		"no id":             {[]string{`{"index":0,"id":null,"function":{"name":"ls","arguments":"{}"}}`}, `{"type":"function","function":{"name":"ls","arguments":"{}"}}`},
		"object":            {[]string{`{"index":0,"id":"a","function":{"name":"ls","arguments":{"x": 1}}}`}, strings.Replace(first, ":1", ": 1", 1)},
	} {
		u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
			chunks := []string{`{"choices":[]}`, `{"prompt_token_ids":[1],"choices":[{"delta":{"role":"assistant"},"token_ids":[5],"logprobs":{"content":[{"logprob":-1}]}}]}`}
			for _, d := range tt.deltas {
				chunks = append(chunks, `{"choices":[{"delta":{"role":"assistant","tool_calls":[`+d+`]}}]}`)
			}
			_, _ = io.WriteString(w, events(append(chunks, `{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`, `{"choices":null,"usage":null}`, `[DONE]`)...))
		})
		calls := map[int]string{} // name and arguments by index
		r, err := u.Answer(t.Context(), call(), func(d *schema.Delta) error {
			var piece struct {
				ToolCalls []struct {
					Index    int
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
			if err := json.Unmarshal(d.Delta, &piece); err != nil {
				return err
			}
			for _, c := range piece.ToolCalls {
				if calls[c.Index] != "" {
					c.Function.Name = ""
				}
				calls[c.Index] += c.Function.Name + c.Function.Arguments
			}
			return schema.CheckPiece(d.Delta)
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want := `{"content":null,"role":"assistant","tool_calls":[` + tt.want + `]}`; string(r.Message) != want {
			t.Errorf("%s: %s, want %s", name, r.Message, want)
		}
		if want := strings.Count(tt.want, `"function":`); len(calls) != want {
			t.Errorf("%s: pieces of %d calls, want %d: %v", name, len(calls), want, calls)
		}
	}
}

// TestArgumentsAsAnObject of an answer without a stream become their text.
func TestArgumentsAsAnObject(t *testing.T) {
	t.Parallel()
	for arguments, want := range map[string]string{`{"a": [1, "é"]}`: `"{\"a\": [1, \"é\"]}"`, `null`: `"{}"`, `"{"`: `"{"`} {
		u, _ := engine(t, func(w http.ResponseWriter, _ map[string]any) {
			_, _ = io.WriteString(w, `{"prompt_token_ids":[1],"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":`+arguments+`}}]},"finish_reason":"tool_calls","token_ids":[5],"logprobs":{"content":[{"logprob":-1}]}}]}`)
		})
		r, err := u.Answer(t.Context(), call(), nil)
		if err != nil || !strings.Contains(string(r.Message), `"arguments":`+want) {
			t.Errorf("%s: %+v, %v", arguments, r, err)
		}
	}
}
