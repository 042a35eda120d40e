package broker_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// cluster is three servers in this process.
type cluster struct {
	configs [3]broker.EmbeddedConfig
	servers [3]*broker.Embedded
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	var ports [6]int
	for i := range ports {
		ports[i] = testenv.FreePort(t)
	}
	c := &cluster{}
	var routes []string
	for _, p := range ports[3:] {
		routes = append(routes, fmt.Sprintf("127.0.0.1:%d", p))
	}
	slices.Sort(routes)
	slices.Reverse(routes) // the order that a reload would change
	for i := range c.servers {
		c.configs[i] = broker.EmbeddedConfig{
			StateDir: filepath.Join(dir, fmt.Sprint(i)), Port: ports[i], Trainers: []string{"alpha"}, Relaxed: true, Log: zerolog.Nop(),
			Cluster: broker.ClusterConfig{Name: fmt.Sprintf("n%d", i), Port: ports[3+i], Routes: routes, Creds: filepath.Join(dir, "creds")},
		}
		c.start(t, i)
	}
	return c
}

func (c *cluster) start(t *testing.T, i int) {
	t.Helper()
	c.servers[i] = testenv.Serve(t, c.configs[i])
}

// lead makes the first server lead a stream.
func (c *cluster) lead(t *testing.T, nc *nats.Conn, js jetstream.JetStream, stream string) {
	t.Helper()
	harness.Eventually(t, "the first server's lead", 5*time.Minute, func() bool {
		s, err := js.Stream(t.Context(), stream)
		if err != nil {
			return false
		}
		if s.CachedInfo().Cluster.Leader == c.configs[0].Cluster.Name {
			return true
		}
		_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, []byte(`{"placement":{"preferred":"`+c.configs[0].Cluster.Name+`"}}`), 5*time.Second)
		return false
	})
}

// A file that is written while a cluster loses its quorum is complete afterwards:
// the leader refuses a second try of a message that it has not stored yet.
func TestAFileOutlivesALostQuorum(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	c := newCluster(t)
	const pieces = 40
	data := harness.Noise(pieces << 20)
	log := testenv.NewRetries()
	b := testenv.DialAt(t, c.servers[0].URL(), testenv.AdmitWorker(t, c.servers[0], "w1"), broker.InboxFor("worker", "w1"), zerolog.New(log))
	harness.Eventually(t, "the streams", 5*time.Minute, func() bool { return b.Streams.Setup(t.Context(), broker.StreamsConfig{Replicas: 3}) == nil })
	harness.Eventually(t, "the streams of a trainer", 5*time.Minute, func() bool { _, err := b.Trainers.Open(t.Context(), "alpha"); return err == nil })
	nc := testenv.Raw(t, c.servers[0].URL(), c.servers[0].AdminCreds(), "_INBOX.test")
	js, err := jetstream.New(nc)
	harness.Must(t, err)
	bucket := subjects.ObjectStream(subjects.ArtifactsBucket("alpha"))
	c.lead(t, nc, js, bucket)
	stored := func() uint64 {
		s, err := js.Stream(t.Context(), bucket)
		harness.Must(t, err)
		return s.CachedInfo().State.Msgs
	}
	ended := make(chan error, 1)
	var a schema.Artifact
	go func() {
		var err error
		a, err = b.Objects.PutArtifact(t.Context(), "alpha", "log", broker.FileOf(data), 0)
		ended <- err
	}()
	harness.Eventually(t, "some pieces", 5*time.Minute, func() bool { return stored() > 4 })
	c.servers[1].Shutdown()
	c.servers[2].Shutdown()
	for range 2 {
		log.Wait(t)
	}
	c.start(t, 1)
	c.start(t, 2)
	harness.Must(t, <-ended)
	if n := stored(); n != pieces+1 {
		t.Errorf("%d messages for %d pieces and their name", n, pieces)
	}
	store, err := js.ObjectStore(t.Context(), subjects.ArtifactsBucket("alpha"))
	harness.Must(t, err)
	patient, cancel := context.WithTimeout(t.Context(), time.Minute) // the default of 5 s is too short on a busy machine
	defer cancel()
	if theirs, err := store.GetBytes(patient, a.SHA256); err != nil || !bytes.Equal(theirs, data) {
		t.Fatalf("the usual client cannot read it: %v", err)
	}
}

// A server of a cluster is healthy when it has found the others.
func TestAServerAloneIsNotHealthy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i, srv := range c.servers {
		harness.Eventually(t, fmt.Sprintf("the health of server %d", i), 5*time.Minute, func() bool { return srv.Healthy() == nil })
	}
	for _, srv := range c.servers {
		srv.Shutdown()
	}
	c.start(t, 0)
	if err := c.servers[0].Healthy(); err == nil || !strings.Contains(err.Error(), "the NATS server is not healthy: ") {
		t.Errorf("a server without the others: %v", err)
	}
}
