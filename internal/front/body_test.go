package front

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// TestDecodeBoundsMemory: small values that are large when they are decoded are refused,
// and as many as the other bounds allow are not.
func TestDecodeBoundsMemory(t *testing.T) {
	for _, body := range []string{
		`{"requests":[{}` + strings.Repeat(",{}", 1_000_000) + `]}`,
		`{"requests":[{"steps":[{}` + strings.Repeat(",{}", 2_000_000) + `]}]}`,
	} {
		var into submission
		var p *problem
		if err := decode([]byte(body), &into); !errors.As(err, &p) || p.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("%.40s…: %v", body, err)
		}
	}
	all := submission{Requests: make([]schema.Request, maxSubmit)}
	for i := range all.Requests {
		all.Requests[i] = plainRequest()
		all.Requests[i].Labels = map[string]string{"a": "b"}
		all.Requests[i].Agent.Env = map[string]string{"A": "b", "B": "c"}
	}
	data, err := json.Marshal(&all)
	harness.Must(t, err)
	var into submission
	harness.Must(t, decode(data, &into))
	if len(into.Requests) != maxSubmit || into.Requests[1].Labels["a"] != "b" {
		t.Errorf("%d requests, %+v", len(into.Requests), into.Requests[1])
	}
	long := frame{Type: frameAnswer, Reply: &schema.Reply{PromptIDs: schema.TokenIDs(make([]byte, 4<<20))}}
	data, err = json.Marshal(&long)
	harness.Must(t, err)
	var f frame
	harness.Must(t, decode(data, &f))
	if f.Reply.PromptIDs.Len() != long.Reply.PromptIDs.Len() {
		t.Errorf("%d token ids", f.Reply.PromptIDs.Len())
	}
}
