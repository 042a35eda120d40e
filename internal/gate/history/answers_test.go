package history

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestEarlierAnswersAreSpooled to a file beyond the memory bound, and read
// back.
func TestEarlierAnswersAreSpooled(t *testing.T) {
	e := &answers{memory: 10_000, worker: &NewMemory(1 << 20).conversations, own: AsSent}
	defer e.close()
	var messages []json.RawMessage
	for i := range 50 {
		e.Keep(fmt.Sprint(i), messages, json.RawMessage(fmt.Sprintf(`{"n":%d,"x":%q}`, i, strings.Repeat("x", 1000))))
		var err error
		if messages, err = e.find(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if e.bytes > 10_000 || e.spooled == 0 {
		t.Errorf("%d bytes in memory, %d on disk", e.bytes, e.spooled)
	}
	for i := range 50 {
		got, err := e.find(fmt.Sprint(i))
		if err != nil || len(got) != i+1 {
			t.Fatalf("%d: %d messages, %v", i, len(got), err)
		}
		for k := range got {
			if string(got[k]) != string(messages[k]) {
				t.Fatalf("%d: message %d is %.30s", i, k, got[k])
			}
		}
	}
	if _, err := e.find("50"); err == nil {
		t.Error("one that never was is found")
	}
}

// TestListsOfEarlierAnswersCount: a conversation with many small messages costs
// memory for its list in each answer that goes on from it.
func TestListsOfEarlierAnswersCount(t *testing.T) {
	const limit = 1 << 20
	e := &answers{memory: limit, worker: &NewMemory(1 << 30).conversations, own: AsSent}
	defer e.close()
	messages := make([]json.RawMessage, 5000)
	for i := range messages {
		messages[i] = json.RawMessage(`{}`)
	}
	for i := range 40 {
		e.Keep(fmt.Sprint(i), messages, json.RawMessage(`{}`))
		var err error
		if messages, err = e.find(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	lists := 0
	for _, id := range e.order {
		lists += cap(e.known[id].messages) * 24
	}
	if lists > limit || len(e.order) == 0 {
		t.Errorf("%d conversations in memory have lists of %d bytes, the limit is %d", len(e.order), lists, limit)
	}
}
