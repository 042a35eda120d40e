package gate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/turngate/turngate/worker/gate"
)

// BenchmarkDecode reads a request of 256 KB whose conversation went on by one
// turn since the last one, in every dialect. x-of-size is what it allocates
// beside the body's own buffer.
func BenchmarkDecode(b *testing.B) {
	text := strings.Repeat("x", 1000)
	for _, d := range []struct {
		dialect          gate.Dialect
		head, item, tail string
	}{
		{gate.Chat{}, `{"model":"m","messages":[`, `{"role":"user","content":%q}`, `]}`},
		{gate.Responses{}, `{"model":"m","input":[`, `{"role":"user","content":[{"type":"input_text","text":%q}]}`, `]}`},
		{gate.Messages{}, `{"model":"m","max_tokens":1,"messages":[`, `{"role":"user","content":[{"type":"text","text":%q}]}`, `]}`},
		{gate.Gemini{}, `{"contents":[`, `{"role":"user","parts":[{"text":%q}]}`, `]}`},
	} {
		b.Run(d.dialect.Name(), func(b *testing.B) {
			var items []string
			for i := range 256 {
				items = append(items, fmt.Sprintf(d.item, fmt.Sprint(i)+text))
			}
			bodies := [2][]byte{}
			for i := range bodies {
				bodies[i] = []byte(d.head + strings.Join(append(items[:255:255], fmt.Sprintf(d.item, fmt.Sprint("last ", i)+text)), ",") + d.tail)
			}
			decoder := d.dialect.Decoder(gate.NewMemory(0))
			b.ReportAllocs()
			b.SetBytes(int64(len(bodies[0])))
			for n := 0; b.Loop(); n++ {
				if _, err := decodeWith(decoder, nil, bodies[n%2]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
