package trajectory

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"strings"
)

// Answers finds the answers of earlier calls among the messages of later ones. Agents send
// each answer back with their next call.
type Answers map[[sha256.Size]byte]int

// Add adds the answer of a call.
func (a Answers) Add(call int, raw json.RawMessage) { a[sense(ReadMessage(raw))] = call }

// Of returns the call whose answer a message is; 0: it is none, or the agent has changed it.
// Another form of the same text and tools is no change, and most agents leave the reasoning
// out.
func (a Answers) Of(raw json.RawMessage) int {
	if m := ReadMessage(raw); m.Role == "assistant" {
		return a[sense(m)]
	}
	return 0
}

// sense identifies what an answer says and does. The ids of its tool calls are not part of it.
func sense(m Message) [sha256.Size]byte {
	parts := []string{strings.TrimSpace(m.Text)}
	for _, u := range m.Tools {
		given := u.Arguments
		var b bytes.Buffer
		if json.Compact(&b, []byte(given)) == nil {
			given = b.String()
		}
		parts = append(parts, u.Name, given)
	}
	data, _ := json.Marshal(parts) // a list of texts has a form
	return sha256.Sum256(data)
}
