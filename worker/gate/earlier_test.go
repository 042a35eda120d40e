package gate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestEarlierAnswersAreSpooled beyond the memory for them, and read back.
func TestEarlierAnswersAreSpooled(t *testing.T) {
	e := &earlier{memory: 10_000}
	defer e.close()
	var messages []json.RawMessage
	for i := range 50 {
		e.keep(fmt.Sprint(i), messages, json.RawMessage(fmt.Sprintf(`{"n":%d,"x":%q}`, i, strings.Repeat("x", 1000))))
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
