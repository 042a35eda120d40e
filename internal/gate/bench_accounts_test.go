package gate_test

import (
	"slices"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
)

// BenchmarkAccounts compares calls of 32 KB, in turns, between a trainer with its
// own account and a trainer in the workers' account.
func BenchmarkAccounts(b *testing.B) {
	var gates [2]func([]byte) error
	var grow [2]growing
	for i := range gates {
		srv := testenv.StartNATS(b, "alpha")
		srv.AdmitWorker(b, "w1")
		at := placeOf(srv)
		if i == 0 {
			at.Trainer = at.Admin
		}
		startHere(b, partTrainer, at)
		at = startHere(b, partGate, at)
		client := testClient(b)
		gates[i] = func(body []byte) error { return post(client, at.Gate+chatTalk().path, at.Key, body) }
		grow[i] = growing{talk: chatTalk(), size: 32 << 10}
	}
	var took [2][]time.Duration
	for n := range 2 * max(b.N, 1) {
		i := n % 2
		body := grow[i].next()
		start := time.Now()
		if err := gates[i](body); err != nil {
			b.Fatal(err)
		}
		took[i] = append(took[i], time.Since(start))
	}
	for i, name := range []string{"one-account", "accounts"} {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2].Nanoseconds())/1000, name+"-p50-µs")
	}
	b.ReportMetric(0, "ns/op")
}
