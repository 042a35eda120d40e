package upstream_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/upstream"
)

// vllm answers a probe as that engine does; without is what it lacks.
func vllm(without string) func(w http.ResponseWriter, body map[string]any) {
	return func(w http.ResponseWriter, body map[string]any) {
		temperature, _ := body["temperature"].(float64)
		gap := 1.5
		if without != "processed" {
			gap /= temperature
		}
		lp := fmt.Sprintf(`{"content":[{"logprob":-0.1,"top_logprobs":[{"logprob":-0.1},{"logprob":%f}]}]}`, -0.1-gap)
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

// TestRefusedParametersAreLeftOut as hosted engines want it, and said.
func TestRefusedParametersAreLeftOut(t *testing.T) {
	var last map[string]any
	u, _ := engine(t, func(w http.ResponseWriter, body map[string]any) {
		last = body
		for _, name := range []string{"return_token_ids", "max_tokens", "temperature"} {
			if body[name] != nil {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = fmt.Fprintf(w, `{"error":{"message":"Unsupported parameter: '%s' is not supported with this model. Use something else."}}`, name)
				return
			}
		}
		_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{}}`)
	})
	for range 2 {
		r, err := u.Answer(t.Context(), call())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Join(r.Edits, ",") != "max_tokens,return_token_ids,temperature" || last["max_completion_tokens"] != 100.0 {
			t.Errorf("edits %q, sent %v", r.Edits, last)
		}
		var sampling map[string]any
		if err := json.Unmarshal(r.Sampling, &sampling); err != nil || sampling["temperature"] != nil || sampling["max_completion_tokens"] != 100.0 {
			t.Errorf("sampling %s, %v", r.Sampling, err)
		}
	}
}
