package upstream

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

// FuzzReadStream: whatever an engine streams, what is put together is an
// answer or an error.
func FuzzReadStream(f *testing.F) {
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"a\",\"tool_calls\":[{\"index\":0,\"id\":\"1\"}]},\"token_ids\":[1],\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n")
	f.Add("data:{\"prompt_token_ids\":[1],\"usage\":null}\r\n\r\ndata: [DONE]")
	f.Add("data: {\"error\":{\"message\":\"x\",\"code\":\"y\"}}\n")
	f.Fuzz(func(t *testing.T, body string) {
		var got completion
		err := readStream(strings.NewReader(body), &got, func(d *schema.Delta) error {
			if !json.Valid(d.Delta) {
				t.Errorf("%q is no JSON", d.Delta)
			}
			return nil
		})
		if err == nil && (len(got.Choices) != 1 || !json.Valid(got.Choices[0].Message)) {
			t.Errorf("%q gave %+v", body, got)
		}
	})
}
