package upstream_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/upstream"
)

// vllm answers a probe as vLLM does; without names a missing feature.
func vllm(without string) func(w http.ResponseWriter, body map[string]any) {
	return func(w http.ResponseWriter, body map[string]any) {
		temperature, _ := body["temperature"].(float64)
		gap := 1.5
		if without != "processed" {
			gap /= temperature
		}
		lp := fmt.Sprintf(`{"content":[{"logprob":-9,"top_logprobs":[{"logprob":-9},{"logprob":-0.1},{"logprob":-0.2},{"logprob":%f}]}]}`, -0.1-gap)
		ids, prompt := `"token_ids":[5],`, `"prompt_token_ids":[1,2],`
		if without == "ids" {
			ids, prompt = "", ""
		}
		message := `{"role":"assistant","content":"one"}`
		if body["tools"] != nil && without != "tools" {
			message = `{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"count_to","arguments":"{\"n\":5}"}}]}`
		}
		if body["stream"] == true {
			_, _ = io.WriteString(w, `data: {`+prompt+`"choices":[{`+ids+`"delta":{"content":"one"}}]}`+"\n\ndata: [DONE]\n\n")
			return
		}
		_, _ = io.WriteString(w, `{`+prompt+`"choices":[{`+ids+`"message":`+message+`,"finish_reason":"stop","logprobs":`+lp+`}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	for without, want := range map[string][]string{"": nil, "ids": {"token ids", "streaming"}, "processed": {"log-probs"}, "tools": {"tool calls"}} {
		u, _ := engine(t, vllm(without))
		var bad []string
		for _, f := range u.Probe(t.Context()) {
			if f.Err != nil {
				bad = append(bad, f.What)
			}
		}
		if strings.Join(bad, ",") != strings.Join(want, ",") {
			t.Errorf("without %q: %v, want %v", without, bad, want)
		}
	}
	u, err := upstream.New(upstream.Config{URL: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if f := u.Probe(t.Context()); len(f) != 1 || f[0].Err == nil {
		t.Errorf("an engine that is away: %+v", f)
	}
}
