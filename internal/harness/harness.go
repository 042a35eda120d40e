// Package harness has the few functions that the tests of most packages need.
// Package testenv has the servers and programs.
package harness

import (
	"crypto/rand"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/turngate/turngate/schema"
)

// Must ends the test if err is not nil.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Eventually waits until ok returns true, and ends the test if that takes longer
// than the limit. The error has what as its subject, such as "the result".
func Eventually(t testing.TB, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-late.C:
			t.Fatalf("%s did not come about within %s", what, limit)
		case <-tick.C:
		}
	}
}

// Request returns a small valid request for the agent mini in a dummy sandbox.
func Request(id schema.ID) schema.Request {
	return schema.Request{
		ID: id, Trainer: id.Trainer(), Task: schema.Task{Name: "t", Instruction: "do it"},
		Agent: schema.AgentChoice{Name: "mini"}, Sandbox: schema.SandboxChoice{Backend: "dummy"},
	}
}

// HashesOf hashes all parts of a call.
func HashesOf(c *schema.Call) *schema.Hashes {
	var s schema.Hasher
	h := &schema.Hashes{Messages: make([]schema.Hash, len(c.Messages)), Tools: s.Tools(c.Tools), Params: s.Params(c.Params)}
	for i, m := range c.Messages {
		h.Messages[i] = s.Message(m)
	}
	return h
}

// Noise returns n random bytes, which cannot be compressed.
func Noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.Read(data) // never fails
	return data
}

// Get reads a page.
func Get(t testing.TB, url string) (status int, text string) {
	t.Helper()
	res, err := http.Get(url) //nolint:noctx // of a test
	Must(t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	Must(t, err)
	return res.StatusCode, string(data)
}
