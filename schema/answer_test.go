package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

func TestCheckAnswerNamesTheField(t *testing.T) {
	for message, field := range map[string]string{
		``:                               "message",
		`[]`:                             "message",
		`{"content":"a"`:                 "message",
		`{"role":"user","content":"a"}`:  "message.role",
		`{"content":1}`:                  "message.content",
		`{"content":[1]}`:                "message.content[0]",
		`{"content":[{"type":"image"}]}`: "message.content[0].type",
		`{"reasoning_content":{}}`:       "message.reasoning_content",
		`{"tool_calls":{}}`:              "message.tool_calls",
		`{"tool_calls":[1]}`:             "message.tool_calls[0]",
		`{"tool_calls":[{"id":"a"}]}`:    "message.tool_calls[0].function",
		`{"tool_calls":[{"id":7}]}`:      "message.tool_calls[0].id",
		`{"tool_calls":[{"id":"` + strings.Repeat("x", 1100) + `","function":{"name":"f","arguments":""}}]}`: "message.tool_calls[0].id",
		`{"tool_calls":[{"id":"a","type":"x"}]}`:                             "message.tool_calls[0].type",
		`{"tool_calls":[{"id":"a","index":-1}]}`:                             "message.tool_calls[0].index",
		`{"tool_calls":[{"id":"a","function":{"arguments":""}}]}`:            "message.tool_calls[0].function.name",
		`{"tool_calls":[{"id":"a","function":{"name":"f","arguments":{}}}]}`: "message.tool_calls[0].function.arguments",
		`{"tool_calls":[{"id":"a","function":{"name":"f"}}]}`:                "message.tool_calls[0].function.arguments",
		`{"tool_calls":[{"id":"a","function":{"name":"f","arguments":""}},{"id":"b","type":"custom","custom":{"name":"f","input":{"big":"` + "x" + `"}}}]}`: "message.tool_calls[1].custom.input",
	} {
		err := schema.CheckAnswer([]byte(message))
		var wrong *schema.InvalidError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v, want one that names %s", message, err, field)
		}
	}
	for _, message := range []string{
		`{}`, `{"role":"assistant","content":null}`, `{"content":"\ud83d"}`, "{\"content\":\"\xff\"}", `{"content":[{"type":"text","text":"a"}],"tool_calls":null}`,
		`{"tool_calls":[{"id":"a","type":"function","function":{"name":"","arguments":"{\"a\": "}}]}`,
		`{"tool_calls":[{"id":"a","type":"custom","custom":{"name":"f","input":"x"}}]}`,
		`{"tool_calls":[{"function":{"name":"f","arguments":""}},{"id":null,"function":{"name":"f","arguments":""}},{"id":"","function":{"name":"f","arguments":""}}]}`,
		`{"tool_calls":[{"id":"functions.f:0 é","function":{"name":"f","arguments":""}},{"id":"functions.f:0 é","function":{"name":"f","arguments":""}}]}`,
	} {
		if err := schema.CheckAnswer([]byte(message)); err != nil {
			t.Errorf("%s: %v", message, err)
		}
	}
	if err := schema.CheckPiece([]byte(`{"tool_calls":[{"index":0,"id":null,"function":{"arguments":"x"}}]}`)); err != nil {
		t.Error(err)
	}
	if err := schema.CheckPiece([]byte(`{"tool_calls":[{"index":0,"function":{"arguments":{}}}]}`)); err == nil || !strings.Contains(err.Error(), "delta.tool_calls[0].function.arguments") {
		t.Error(err)
	}
}
