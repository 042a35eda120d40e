package record

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// The transcript of an agent with very much output stays bounded in memory, and
// its last line has the number of lines that were left out.
func TestATranscriptIsBounded(t *testing.T) {
	var kept []byte
	account := New(&schema.Request{ID: "alpha-1"}, 1, "w1", Exits{Log: zerolog.Nop(), Emit: func(*schema.Event) {}, Put: func(_ context.Context, name string, file broker.File) (schema.Artifact, error) {
		data, err := io.ReadAll(file.Open())
		kept = data
		return schema.Artifact{Name: name}, err
	}})
	c := account.Calls
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
		c.Wait()
	}
	made := c.End()
	leftOut := made.leftOut
	if err := account.KeepTranscript(t.Context(), account.Begin("transcript"), made); err != nil {
		t.Fatal(err)
	}
	if res := account.Result(); res.TranscriptTruncated != leftOut || res.Transcript != TranscriptName || res.Fault == nil || res.Fault.Code != schema.CodeTranscript || schema.Validate(res.Fault) != nil {
		t.Errorf("the result says %d and %+v", res.TranscriptTruncated, res.Fault)
	}
	if len(kept) > MaxFile || len(kept) < MaxFile/2 {
		t.Errorf("%d bytes were kept, at most %d", len(kept), MaxFile)
	}
	r, err := zstd.NewReader(bytes.NewReader(kept))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	lines := bufio.NewReader(r)
	var all []map[string]any
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var v map[string]any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	n := len(all) - 1
	if last := all[n]; last["left_out"] != float64(leftOut) || leftOut == 0 || n+leftOut != 2*calls {
		t.Fatalf("%d lines were kept and %d left out of %d; it ends with %v", n, leftOut, 2*calls, last)
	}
	if last := all[n-1]; last["call"] != float64((n-1)/2) {
		t.Fatalf("line %d is of call %v: one is missing before it", n-1, last["call"])
	}
}
