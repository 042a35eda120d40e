package canonical

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func said(id, arguments string) jsontext.Value {
	quoted, err := json.Marshal(arguments)
	if err != nil {
		panic(err) // strings always encode
	}
	return jsontext.Value(fmt.Sprintf(`{"role":"assistant","tool_calls":[{"id":%q,"type":"function","function":{"name":"f","arguments":%s}}]}`, id, quoted))
}

func deliver(t *testing.T, c *Calls, number int, message jsontext.Value) string {
	t.Helper()
	_, calls, err := c.Deliver(number, message, false)
	if err != nil || len(calls) != 1 {
		t.Fatalf("%s: %v, %v", message, calls, err)
	}
	return calls[0].ID
}

// TestTheMemoryOfCallsIsBounded: long arguments are forgotten before any id.
func TestTheMemoryOfCallsIsBounded(t *testing.T) {
	var c Calls
	long := `{"text": "` + strings.Repeat("x", 100_000) + `"}`
	var ids []string
	for n := 1; n <= 100; n++ {
		ids = append(ids, deliver(t, &c, n, said("again", long)))
	}
	own := func(i int) ToolCall {
		message := c.Own(json.RawMessage(said(ids[i], strings.ReplaceAll(long, " ", ""))))
		answer, err := ReadAnswer(message)
		if err != nil || len(answer.ToolCalls) != 1 {
			t.Fatalf("%.100s: %v", message, err)
		}
		return answer.ToolCalls[0]
	}
	if first, last := own(0), own(99); first.ID != "again" || last.ID != "again" || first.Input() == long || last.Input() != long {
		t.Errorf("ids %q and %q, arguments of %d and %d bytes", first.ID, last.ID, len(first.Input()), len(last.Input()))
	}
	if c.texts > maxArguments {
		t.Errorf("%d bytes of arguments", c.texts)
	}
	for n := range 100_000 {
		deliver(t, &c, 101+n, said("again", "{}"))
	}
	if c.ids > maxIDs || len(c.order) != len(c.known) || len(c.known) == 0 {
		t.Errorf("%d bytes of ids, %d in order, %d known", c.ids, len(c.order), len(c.known))
	}
	for range 100_000 {
		c.Own(json.RawMessage(said(fmt.Sprint("agents_", len(c.order), c.ids), "{}")))
	}
	if c.ids > maxIDs {
		t.Errorf("%d bytes of ids", c.ids)
	}
}

// TestAnotherGenerationOfACall: the same model call may get another answer before one
// is delivered, and the last one's ids count.
func TestAnotherGenerationOfACall(t *testing.T) {
	var c Calls
	deliver(t, &c, 1, said("x", "{}"))
	for _, own := range []string{"x", "y", "", "x"} {
		id := deliver(t, &c, 2, said(own, `{"a": 1}`))
		again := deliver(t, &c, 2, said(own, `{"a": 1}`))
		want := own
		if own == "" {
			want = id
		}
		if back := string(c.Own(json.RawMessage(said(id, `{"a":1}`)))); id != again || id == "x" || !strings.Contains(back, fmt.Sprintf(`"id":%q`, want)) || !strings.Contains(back, `{\"a\": 1}`) {
			t.Errorf("%q is delivered as %q, then %q, and comes back as %s", own, id, again, back)
		}
	}
}

// TestIDsOfTheAgent: calls that the agent brought along keep their ids to themselves.
func TestIDsOfTheAgent(t *testing.T) {
	var c Calls
	message := json.RawMessage(said("call_0", `{"a":1}`))
	if got := c.Own(message); &got[0] != &message[0] {
		t.Errorf("%s became %s", message, got)
	}
	if id := deliver(t, &c, 1, said("call_0", `{"a": 1}`)); id == "call_0" {
		t.Error("the agent has two calls with one id")
	}
	if got := c.Own(message); &got[0] != &message[0] {
		t.Errorf("%s became %s", message, got)
	}
}

// TestTheMemoryOfReasoningIsBounded: the oldest reasoning is forgotten, and never an id.
func TestTheMemoryOfReasoningIsBounded(t *testing.T) {
	var c Calls
	long := strings.Repeat("x", 100_000)
	for n := range 100 {
		message := strings.Replace(string(said(fmt.Sprint("c", n), "{}")), "{", `{"reasoning":"`+long+`",`, 1)
		for range 2 { // another generation of the same call takes the place of the first
			if _, _, err := c.Deliver(n+1, jsontext.Value(message), true); err != nil {
				t.Fatal(err)
			}
		}
	}
	back := func(n int) bool {
		return strings.Contains(string(c.Own(json.RawMessage(said(fmt.Sprint("c", n), "{}")))), long)
	}
	if c.thought.bytes > maxReasoning || len(c.thought.order) != len(c.thought.known) || back(0) || !back(99) || !back(70) || len(c.known) != 100 {
		t.Errorf("%d bytes of %d answers, %d calls", c.thought.bytes, len(c.thought.known), len(c.known))
	}
}
