package history_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/dialect/anthropic"
	"github.com/turngate/turngate/internal/gate/dialect/chat"
	"github.com/turngate/turngate/internal/gate/dialect/gemini"
	"github.com/turngate/turngate/internal/gate/dialect/responses"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/internal/gate/history"
)

// BenchmarkDecode reads a request of 256 KB, which is one turn longer than the
// request before, in every dialect. x-of-size is the memory allocated beside
// the body's own buffer.
func BenchmarkDecode(b *testing.B) {
	text := strings.Repeat("x", 1000)
	for _, d := range []struct {
		dialect          dialect.Dialect
		head, item, tail string
	}{
		{chat.Dialect{}, `{"model":"m","messages":[`, `{"role":"user","content":%q}`, `]}`},
		{responses.Dialect{}, `{"model":"m","input":[`, `{"role":"user","content":[{"type":"input_text","text":%q}]}`, `]}`},
		{anthropic.Dialect{}, `{"model":"m","max_tokens":1,"messages":[`, `{"role":"user","content":[{"type":"text","text":%q}]}`, `]}`},
		{gemini.Dialect{}, `{"contents":[`, `{"role":"user","parts":[{"text":%q}]}`, `]}`},
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
			decoder := history.NewReader(d.dialect, history.NewMemory(0), history.AsSent)
			request := gatetest.Posted("/")
			b.ReportAllocs()
			b.SetBytes(int64(len(bodies[0])))
			for n := 0; b.Loop(); n++ {
				if _, err := gatetest.DecodeWith(decoder, request, bodies[n%2]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
