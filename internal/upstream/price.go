package upstream

import (
	"encoding/json"
	"math"
	"strconv"

	"github.com/turngate/turngate/schema"
)

// Price is the price of a model, in USD per million tokens.
type Price struct {
	Input float64 `yaml:"input"`
	// CachedInput is the price of the tokens of a prompt that the server had cached.
	// Nil: Input.
	CachedInput *float64 `yaml:"cached_input"`
	Output      float64  `yaml:"output"`
}

// Validate checks the numbers.
func (p *Price) Validate() error {
	for _, price := range []struct {
		name string
		usd  float64
	}{{"input", p.Input}, {"cached_input", p.cachedInput()}, {"output", p.Output}} {
		if n := price.usd; math.IsNaN(n) || math.IsInf(n, 0) || n < 0 {
			return &schema.InvalidError{Field: "price." + price.name, Value: strconv.FormatFloat(n, 'g', -1, 64), Want: "want USD per million tokens, 0 or more, such as 2.50"}
		}
	}
	return nil
}

func (p *Price) cachedInput() float64 {
	if p.CachedInput == nil {
		return p.Input
	}
	return *p.CachedInput
}

// of returns the cost of an answer in USD; nil without a price, or if the server did
// not count the tokens.
func (p *Price) of(u *schema.Usage) *float64 {
	if p == nil || u.PromptTokens == 0 {
		return nil
	}
	cached := min(u.CachedTokens, u.PromptTokens)
	cost := (float64(u.PromptTokens-cached)*p.Input + float64(cached)*p.cachedInput() + float64(u.CompletionTokens)*p.Output) / 1e6
	return &cost
}

// usage is OpenAI's form of the counts of tokens.
type usage struct {
	PromptTokens     int64           `json:"prompt_tokens"`
	CompletionTokens int64           `json:"completion_tokens"`
	Details          json.RawMessage `json:"prompt_tokens_details"`
}

// counts returns the counts in turngate's form. Details of another form than OpenAI's
// are ignored.
func (u *usage) counts() schema.Usage {
	var details struct {
		Cached int64 `json:"cached_tokens"`
	}
	if len(u.Details) == 0 || json.Unmarshal(u.Details, &details) != nil || details.Cached < 0 {
		details.Cached = 0
	}
	return schema.Usage{PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens, CachedTokens: details.Cached}
}
