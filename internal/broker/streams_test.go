package broker_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

// TestSetupChangesOnlyDifferentStreams: a server refuses streams with overlapping
// subjects, and a cluster without room refuses updates.
func TestSetupChangesOnlyDifferentStreams(t *testing.T) {
	b := testenv.StartPool(t)
	conn := b.JetStream(t).Conn()
	updates, err := conn.SubscribeSync("$JS.EVENT.ADVISORY.STREAM.UPDATED.*")
	harness.Must(t, err)
	harness.Must(t, conn.Flush())
	harness.Must(t, b.Broker.Streams.Setup(t.Context(), broker.StreamsConfig{Timing: testenv.Quick()}))
	longer := testenv.Quick()
	longer.Lease *= 2
	harness.Must(t, b.Broker.Streams.Setup(t.Context(), broker.StreamsConfig{Timing: longer}))
	want := []string{subjects.StreamLeases, subjects.StreamWorkers, subjects.StreamControl}
	var got []string // the server tells them in any order
	for range want {
		m, err := updates.NextMsgWithContext(t.Context())
		harness.Must(t, err)
		got = append(got, m.Subject[strings.LastIndex(m.Subject, ".")+1:])
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("updates of %v, want %v", got, want)
	}
	harness.Must(t, conn.Flush())
	if n, _, err := updates.Pending(); n != 0 || err != nil {
		t.Errorf("%d more updates, %v", n, err)
	}
}
