package worker

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/schema"
)

// The transcript of an agent with very much output stays bounded in memory, and
// its last line tells a reader that lines were left out.
func TestATranscriptIsBounded(t *testing.T) {
	c := newRecorder(&Rollout{Request: schema.Request{ID: "alpha-1"}, Attempt: 1, Log: zerolog.Nop(), Services: Services{Emit: func(*schema.Event) {}}})
	noise := make([]byte, 6<<20) // does not compress
	random := rand.NewChaCha8([32]byte{1})
	const calls = 15
	for n := range calls {
		_, _ = random.Read(noise) // never fails
		text, err := json.Marshal(base64.StdEncoding.EncodeToString(noise))
		if err != nil {
			t.Fatal(err)
		}
		c.CallBegan(n, &schema.Call{V: 1, Messages: []json.RawMessage{text}})
		c.CallBegan(n, &schema.Call{V: 1}) // the line itself would fit
		c.settle()
	}
	data, leftOut := c.transcript()
	c.r.truncated(leftOut)
	if res := c.r.result; res.TranscriptTruncated != leftOut || res.Fault == nil || res.Fault.Code != schema.CodeTranscript || res.Fault.Validate() != nil {
		t.Errorf("the result says %d and %+v", res.TranscriptTruncated, res.Fault)
	}
	if len(data) > maxKept || len(data) < maxKept/2 {
		t.Errorf("%d bytes were kept, at most %d", len(data), maxKept)
	}
	r, err := zstd.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	lines := bufio.NewReader(r)
	var told []map[string]any
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var v map[string]any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		told = append(told, v)
	}
	kept := len(told) - 1
	if last := told[kept]; last["left_out"] != float64(leftOut) || leftOut == 0 || kept+leftOut != 2*calls {
		t.Fatalf("%d lines were kept and %d left out of %d; it ends with %v", kept, leftOut, 2*calls, last)
	}
	if last := told[kept-1]; last["call"] != float64((kept-1)/2) {
		t.Fatalf("line %d is of call %v: one is missing before it", kept-1, last["call"])
	}
}
