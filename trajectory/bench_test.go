package trajectory_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// recording makes the transcript of a rollout as the recorder writes it: in each
// turn the model calls a tool with fresh tokens, and the result adds more.
func recording(t testing.TB, turns, result, answer int) (packed []byte, lines [][]byte, size int) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	ids := make([]int32, 2000)
	next := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = r.Int32N(150_000)
		}
		return out
	}
	copy(ids, next(len(ids)))
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		t.Fatal(err)
	}
	line := func(l *schema.TranscriptLine) {
		data, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		size += len(data) + 1
		lines = append(lines, data)
		if _, err := z.Write(append(data, '\n')); err != nil {
			t.Fatal(err)
		}
	}
	q := &schema.Call{V: 1, Key: "alpha-01/1/1", Tag: schema.TagAgent, Dialect: "chat", Model: "policy", Messages: raws(system, `{"role":"user","content":"Mend the program."}`), Tools: json.RawMessage(`[{"type":"function","function":{"name":"bash"}}]`)}
	count := 2
	for n := 1; n <= turns; n++ {
		line(&schema.TranscriptLine{At: 1795373044737, Call: n, Request: q})
		said := fmt.Sprintf(`{"role":"assistant","content":"","tool_calls":[{"id":"c%d","type":"function","function":{"name":"bash","arguments":"{\"command\":\"sed -n %d,80p main.c\"}"}}]}`, n, n)
		fresh := next(answer)
		probs := make([]float32, answer)
		for i := range probs {
			probs[i] = -r.Float32() * 3
		}
		line(&schema.TranscriptLine{At: 1795373044999, Call: n, Gen: fmt.Sprint("g", n), MS: 900, Reply: &schema.Reply{
			V: 1, Message: json.RawMessage(said), FinishReason: "tool_calls", Usage: schema.Usage{PromptTokens: int64(len(ids)), CompletionTokens: int64(answer)},
			PromptIDs: schema.PackTokenIDs(ids), CompletionIDs: schema.PackTokenIDs(fresh), Logprobs: schema.PackLogprobs(probs), Versions: []schema.VersionSpan{{Version: "v7", Start: 0, End: answer}},
		}})
		ids = append(append(ids, fresh...), next(result)...)
		q = &schema.Call{V: 1, Key: fmt.Sprintf("alpha-01/1/%d", n+1), Tag: schema.TagAgent, Dialect: "chat", Model: "policy", Base: n, Keep: count,
			Messages: raws(said, fmt.Sprintf(`{"role":"tool","tool_call_id":"c%d","content":"%s"}`, n, strings.Repeat("int x = 1;\\n", result*4/12)))}
		count += 2
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), lines, size
}

// BenchmarkRows makes the rows of rollouts of 50 turns. The rate is of the
// transcripts' JSON. 1,000 iterations are 1,000 rollouts.
func BenchmarkRows(b *testing.B) {
	packed, _, size := recording(b, 50, 300, 120)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		rebuild(b, packed)
	}
}

func rebuild(b *testing.B, packed []byte) {
	r, err := trajectory.Read(bytes.NewReader(packed), nil, trajectory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for w := range r.Rows() {
		n += len(w.InputIDs)
	}
	if n < 10_000 {
		b.Fatalf("the rows have %d tokens", n)
	}
}

// BenchmarkRebuild compares the rows of a rollout of 200 turns with its limit: the
// transcript is decompressed and its JSON parsed once by encoding/json.
func BenchmarkRebuild(b *testing.B) {
	packed, lines, size := recording(b, 200, 300, 120)
	b.Run("rows", func(b *testing.B) {
		b.SetBytes(int64(size))
		for b.Loop() {
			rebuild(b, packed)
		}
	})
	b.Run("limit=parse", func(b *testing.B) {
		b.SetBytes(int64(size))
		for b.Loop() {
			z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, z); err != nil {
				b.Fatal(err)
			}
			z.Close()
			for _, l := range lines {
				var into schema.TranscriptLine
				if err := json.Unmarshal(l, &into); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("limit=valid", func(b *testing.B) { // no value is made at all
		b.SetBytes(int64(size))
		for b.Loop() {
			for _, l := range lines {
				if !json.Valid(l) {
					b.Fatal("not JSON")
				}
			}
		}
	})
}

// Rows take less time than to parse the transcript's JSON once and a half.
func TestRebuildingIsCheaperThanParsing(t *testing.T) {
	packed, lines, _ := recording(t, 200, 100, 40)
	best := func(f func()) time.Duration {
		least := time.Hour
		for range 3 {
			start := time.Now()
			f()
			least = min(least, time.Since(start))
		}
		return least
	}
	rows := best(func() {
		r, err := trajectory.Read(bytes.NewReader(packed), nil, trajectory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for w := range r.Rows() {
			if len(w.Calls) != 200 {
				t.Fatalf("the row has %d calls", len(w.Calls))
			}
		}
	})
	parse := best(func() {
		for _, l := range lines {
			var into schema.TranscriptLine
			if err := json.Unmarshal(l, &into); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Logf("rows %v, parsing %v", rows, parse)
	if rows > parse*3/2 {
		t.Errorf("the rows took %v, more than 1.5 times the %v of parsing", rows, parse)
	}
}
