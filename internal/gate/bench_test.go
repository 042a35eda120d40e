package gate_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/testenv"
)

// BenchmarkGate measures one model call of a growing conversation through
// everything (HTTP in, NATS, trainer, HTTP out) beside its physical parts, a
// bare HTTP hop and a bare NATS request/reply with the same bytes, interleaved
// in one run. It reports the medians in microseconds and "x-of-parts", their
// ratio. "apart" has every server in a process of its own, "hosted" has NATS in
// the trainer's; otherwise all of them are in this one.
//
// Compare two commits:
//
//	go test -run '^$' -bench Gate/chat -count 10 ./internal/gate >old.txt
//	benchstat old.txt new.txt
func BenchmarkGate(b *testing.B) {
	here, hosted, apart := layouts()
	for _, talk := range talks() {
		b.Run(talk.name, func(b *testing.B) { benchmarkGate(b, talk, here) })
	}
	for _, l := range []layout{hosted, apart} {
		b.Run(l.name, func(b *testing.B) { benchmarkGate(b, chatTalk(), l) })
	}
}

func benchmarkGate(b *testing.B, talk talk, l layout) {
	for _, size := range []int{2 << 10, 32 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			at := l.start(b)
			client := testClient(b)
			asker, err := at.connect("_INBOX.asker")
			if err != nil {
				b.Fatal(err)
			}
			defer asker.Close()
			calls := [3]func([]byte) error{
				func(body []byte) error { return post(client, at.Echo, "", body) },
				func(body []byte) error { return ask(asker, body) },
				func(body []byte) error { return post(client, at.Gate+talk.path, at.Key, body) },
			}
			var took [3][]time.Duration
			grow := growing{talk: talk, size: size}
			b.ResetTimer()
			for b.Loop() {
				body := grow.next()
				for i, call := range calls {
					start := time.Now()
					if err := call(body); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(start))
				}
			}
			b.StopTimer()
			var p50 [3]float64
			for i := range took {
				slices.Sort(took[i])
				p50[i] = float64(took[i][len(took[i])/2].Nanoseconds()) / 1000
			}
			b.ReportMetric(0, "ns/op") // the sum of three different things has no meaning
			b.ReportMetric(p50[0], "http-µs")
			b.ReportMetric(p50[1], "nats-µs")
			b.ReportMetric(p50[2], "gate-µs")
			b.ReportMetric(p50[2]/(p50[0]+p50[1]), "x-of-parts")
		})
	}
}

// newClient keeps enough connections open for many calls at once.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}}
}

func testClient(t testing.TB) *http.Client {
	client := newClient()
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func post(client *http.Client, url, key string, body []byte) error {
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

// ask sends a bare NATS request.
func ask(nc *nats.Conn, body []byte) error {
	_, err := nc.Request(bareSubject, body, 5*time.Second)
	return err
}

// bareHTTP returns a function that makes a bare HTTP hop with an answer.
func bareHTTP(b *testing.B, answer []byte) func([]byte) error {
	srv := httptest.NewServer(echo(answer))
	b.Cleanup(srv.Close)
	client := testClient(b)
	return func(body []byte) error { return post(client, srv.URL, "", body) }
}

// bareNATS returns a function that makes a bare NATS request.
func bareNATS(b *testing.B, srv testenv.NATS) func([]byte) error {
	at := placeOf(srv)
	startHere(b, partResponder, at)
	asker, err := at.connect("_INBOX.asker")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(asker.Close)
	return func(body []byte) error { return ask(asker, body) }
}

// wholeGate returns a function that makes a chat call through all parts.
func wholeGate(b *testing.B, srv testenv.NATS) func([]byte) error {
	srv.AdmitWorker(b, "w1")
	at := placeOf(srv)
	startHere(b, partTrainer, at)
	at = startHere(b, partGate, at)
	client := testClient(b)
	return func(body []byte) error { return post(client, at.Gate+chatTalk().path, at.Key, body) }
}

// benchAnswer is the answer of every part.
func benchAnswer() []byte { return []byte(strings.Repeat("y", 1024)) }
