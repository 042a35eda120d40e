package gatetest

import (
	"encoding/json"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect/toy"
)

// Toy is the fixture of package toy.
func Toy() Fixture {
	return Fixture{
		Dialect: toy.Dialect{}, Path: Always("/toy"), KeepAlive: "event: alive",
		Body: func(text string, stream bool) string {
			return JSON(object{"model": "policy", "stream": stream, "talk": []any{object{"who": "user", "says": text}}})
		},
		Read:    readToy,
		Reasons: map[string]string{"stop": `"end":"stop"`, "length": `"end":"length"`, "tool_calls": `"end":"tool_calls"`, "content_filter": `"end":"content_filter"`},
		Talk: Talk{
			Path: "/toy",
			Head: `{"model":"m","mood":%d,"talk":[`,
			Item: `{"who":"user","says":%q}`,
			Tail: `],"tools":[%s]}`,
			Tool: `%q`,
		},
	}
}

func readToy(t *testing.T, body []byte, stream bool) (text string, tools []string) {
	t.Helper()
	all := []Event{{Kind: "end", Data: string(body)}}
	if stream {
		all = Events(string(body))
	}
	for _, e := range all {
		var a struct {
			ID, Says, End string
			Tokens        int
			Calls         []struct {
				Tool string
				With json.RawMessage
			}
		}
		if err := json.Unmarshal([]byte(e.Data), &a); err != nil || e.Kind == "end" && (a.ID == "" || a.End == "" || a.Tokens == 0) {
			t.Fatalf("%v: %+v", err, e)
		}
		text += a.Says
		for _, c := range a.Calls {
			tools = append(tools, c.Tool+" "+string(c.With))
		}
	}
	return text, tools
}
