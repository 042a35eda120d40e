package upstream_test

import (
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

// TestACallHasItsCost, whole and streamed, with the price of cached tokens. Details of
// another form do not break a call.
func TestACallHasItsCost(t *testing.T) {
	t.Parallel()
	cached, none := 0.5, func(*schema.Delta) error { return nil }
	for name, tt := range map[string]struct {
		details string
		price   *upstream.Price
		cached  int64
		want    float64 // USD; below 0: not known
	}{
		"no price":        {`{"cached_tokens":400000}`, nil, 400_000, -1},
		"cached":          {`{"cached_tokens":400000}`, &upstream.Price{Input: 2, CachedInput: &cached, Output: 8}, 400_000, 0.6*2 + 0.4*0.5 + 0.5*8},
		"no cached price": {`{"cached_tokens":400000}`, &upstream.Price{Input: 2, Output: 8}, 400_000, 2 + 0.5*8},
		"more than all":   {`{"cached_tokens":4000000}`, &upstream.Price{Input: 2, CachedInput: &cached}, 4_000_000, 0.5},
		"null":            {`null`, &upstream.Price{Input: 2, CachedInput: &cached}, 0, 2},
		"another form":    {`["x"]`, &upstream.Price{Input: 2, CachedInput: &cached}, 0, 2},
		"below 0":         {`{"cached_tokens":-5}`, &upstream.Price{Input: 2, CachedInput: &cached}, 0, 2},
		"free":            {`null`, &upstream.Price{}, 0, 0},
	} {
		usage := `"usage":{"prompt_tokens":1000000,"completion_tokens":500000,"cost_usd":77,"prompt_tokens_details":` + tt.details + `}`
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if len(body) > 0 && r.URL.Path == "/v1/chat/completions" && r.Header.Get("X-Request-Id") == "alpha-1/1/2" {
				_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],"+usage+"}\n\ndata: [DONE]\n\n")
				return
			}
			_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],`+usage+`}`)
		}))
		t.Cleanup(srv.Close)
		u, err := upstream.New(upstream.Config{URL: srv.URL, Model: "m", Plain: true, Price: tt.price})
		if err != nil {
			t.Fatal(err)
		}
		whole, streamed := call(), call()
		streamed.Key = "alpha-1/1/2"
		for _, ask := range []struct {
			call *schema.Call
			emit func(*schema.Delta) error
		}{{whole, nil}, {streamed, none}} {
			r, err := u.Answer(t.Context(), ask.call, ask.emit)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got := r.Usage
			if got.PromptTokens != 1_000_000 || got.CompletionTokens != 500_000 || got.CachedTokens != tt.cached || (got.CostUSD == nil) != (tt.want < 0) || got.CostUSD != nil && math.Abs(*got.CostUSD-tt.want) > 1e-9 {
				t.Errorf("%s: got %+v, cost %v, want %v", name, got, got.CostUSD, tt.want)
			}
		}
	}
}

// TestACostWithoutCountsIsNotKnown: a server need not count tokens.
func TestACostWithoutCountsIsNotKnown(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}`)
	}))
	t.Cleanup(srv.Close)
	u, err := upstream.New(upstream.Config{URL: srv.URL, Model: "m", Plain: true, Price: &upstream.Price{Input: 2, Output: 8}})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := u.Answer(t.Context(), call(), nil); err != nil || r.Usage.CostUSD != nil {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestAPriceIsChecked(t *testing.T) {
	t.Parallel()
	below := -1.0
	for field, p := range map[string]upstream.Price{"price.input": {Input: math.NaN()}, "price.cached_input": {CachedInput: &below}, "price.output": {Output: math.Inf(1)}} {
		var invalid *schema.InvalidError
		if err := p.Validate(); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	if err := (&upstream.Price{Input: 1, Output: 2}).Validate(); err != nil {
		t.Error(err)
	}
}
