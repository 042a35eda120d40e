package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

// TestALeafNode makes the files of a server and of a leaf node. A worker behind the
// leaf node runs rollouts while its link to the server is cut, with all durations of
// the queue divided by 10, and joined again. The trainer answers during the cut.
func TestALeafNode(t *testing.T) {
	testenv.Slow(t)
	const speed = 10
	h := startHub(t, 1, "paris", "", asPrinted)
	link := testenv.NewProxy(t, h.leaves[0])
	site := h.startSite(t, "paris", link.Addr(), "w1", "")
	log := &harness.Buffer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log)
		}
	})
	startLeafWorker(t, site, leafWorker{name: "w1", slots: leafRollouts, timing: broker.DefaultTiming().Faster(speed), log: zerolog.New(log)})
	tr := startLeafTrainer(t, h)
	tr.submit(t)
	link.Set(true, true, 0)
	tr.answer() // these answers are lost with the link
	harness.Eventually(t, "the suspension of all rollouts", 5*time.Minute, func() bool {
		said := log.String()
		return strings.Count(said, `"suspended":true`)-strings.Count(said, `"suspended":false`) == leafRollouts
	})
	// The lease is gone by then, and the time after which others would take over is, too:
	// a renewal without an answer takes six seconds, a minute divided by speed.
	missed := func() int { return strings.Count(log.String(), "the lease was not renewed") }
	before := missed()
	harness.Eventually(t, "two further renewals that fail", 5*time.Minute, func() bool { return missed() >= before+2 })
	link.Cut()
	link.Heal()
	tr.results(t)
}

// TestALeafNodeWithTLS lets a worker behind a leaf node run rollouts over a link with TLS.
// Leaf nodes that do not know the servers' authority have no link, and say why.
func TestALeafNodeWithTLS(t *testing.T) {
	certs, others := t.TempDir(), t.TempDir()
	testenv.Certificates(t, certs)
	testenv.Certificates(t, others)
	ca := filepath.Join(certs, "ca.pem")
	// The trainer is in this process, which does not trust the test's authority: its
	// connection, and no other, may be without TLS.
	plainClients := func(text string) string { return text + "allow_non_tls: true\n" }
	h := startHub(t, 1, "paris", "--tls-cert "+filepath.Join(certs, "server.pem")+" --tls-key "+filepath.Join(certs, "server-key.pem"), plainClients)
	for name, tls := range map[string]string{"another authority": "--tls-ca " + filepath.Join(others, "ca.pem"), "no authority": ""} {
		site := h.startSite(t, "paris", h.leaves[0], "w1", tls)
		harness.Eventually(t, "the refusal of the leaf node with "+name, 5*time.Minute, func() bool {
			return strings.Contains(site.log.String(), "x509: certificate signed by unknown authority")
		})
		_, err := dialLeaf(t, site, "w1", zerolog.Nop()).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), "leaf node") {
			t.Errorf("%s: the worker gets %v", name, err)
		}
		site.stop()
	}
	site := h.startSite(t, "paris", h.leaves[0], "w1", "--tls-ca "+ca)
	startLeafWorker(t, site, leafWorker{name: "w1", slots: leafRollouts, timing: broker.DefaultTiming(), log: zerolog.Nop()})
	tr := startLeafTrainer(t, h)
	tr.submit(t)
	tr.answer()
	tr.results(t)
}

// TestALeafNodeOfThreeServers lets the server die that a leaf node is connected to, while
// rollouts behind the leaf node wait for their model.
func TestALeafNodeOfThreeServers(t *testing.T) {
	testenv.Slow(t)
	h := startHub(t, 3, "paris", "", asPrinted)
	site := h.startSite(t, "paris", strings.Join(h.leaves, ","), "w1", "")
	startLeafWorker(t, site, leafWorker{name: "w1", slots: leafRollouts, replicas: 3, timing: broker.DefaultTiming(), log: zerolog.Nop()})
	tr := startLeafTrainer(t, h)
	tr.submit(t)
	linked, last := -1, -1 // the newest link of the leaf node
	for i, address := range h.leaves {
		if at := strings.LastIndex(site.log.String(), address+" - lid:"); at > last {
			linked, last = i, at
		}
	}
	if linked < 0 {
		t.Fatal("the leaf node names no server")
	}
	h.servers[linked].stop()
	tr.answer()
	tr.results(t)

	// The results, as the servers that live have them.
	key, err := nats.NkeyOptionFromSeed(filepath.Join(h.dir, "creds", "admin.nk"))
	harness.Must(t, err)
	nc, err := nats.Connect(strings.Join(append(h.clients[:linked:linked], h.clients[linked+1:]...), ","), key)
	harness.Must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	harness.Must(t, err)
	harness.Eventually(t, "the stream of records", 5*time.Minute, func() bool {
		s, err := js.Stream(t.Context(), subjects.Records("alpha"))
		if err != nil {
			return false
		}
		info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(subjects.ResultFilter("alpha")))
		if err != nil {
			return false
		}
		if len(info.State.Subjects) != leafRollouts || info.Config.Replicas != 3 {
			t.Errorf("%d copies of the results of %v", info.Config.Replicas, info.State.Subjects)
		}
		for subject, n := range info.State.Subjects {
			if n != 1 {
				t.Errorf("%s has %d results", subject, n)
			}
		}
		return true
	})
}

// TestTwoSites runs a group that needs the workers of two sites, each behind its own leaf
// node. A worker of a site hears nothing of the other site's, and can write none of it.
func TestTwoSites(t *testing.T) {
	const slots = leafRollouts / 2
	h := startHub(t, 1, "oslo,paris", "", asPrinted)
	sites := map[string]leafSite{}
	for worker, name := range map[string]string{"w1": "paris", "w2": "oslo"} {
		sites[worker] = h.startSite(t, name, h.leaves[0], worker, "")
		startLeafWorker(t, sites[worker], leafWorker{name: worker, slots: slots, timing: broker.DefaultTiming(), log: zerolog.Nop()})
	}
	// Clients with the right credential at the right site hear what the attacker does not.
	own, attacker := leafEar(t, sites["w2"], "w2"), leafEar(t, sites["w1"], "w1")
	theirs := []string{"_INBOX.gate.*.w2.>", "_INBOX.worker.w2.>", subjects.WorkerControl("w2"), subjects.ShellDown("w2", "*")}
	for _, subject := range theirs {
		own.listen(t, subject)
		attacker.listen(t, subject)
	}
	for _, subject := range []string{">", "_INBOX.>", subjects.WorkerControl("*"), "rollout.>", subjects.Lease("w2", "i1")} {
		attacker.listen(t, subject)
	}
	for _, subject := range []string{subjects.Lease("w2", "i1"), subjects.Presence("w2", "i1"), "_INBOX.worker.w2.x", "rollout.alpha-leaf0.events.x.y"} {
		harness.Must(t, attacker.nc.Publish(subject, []byte("forged")))
	}
	harness.Must(t, attacker.nc.Flush())

	tr := startLeafTrainer(t, h)
	tr.submit(t) // all of the group run at once, and no site has slots for all
	tr.answer()
	if by := tr.results(t); by["w1"] != slots || by["w2"] != slots {
		t.Errorf("the results are of %v", by)
	}
	harness.Eventually(t, "a frame for w2", 5*time.Minute, func() bool { return len(own.heard) > 0 })
	harness.Must(t, attacker.nc.Flush())
	for len(attacker.heard) > 0 {
		t.Errorf("w1 heard a message of the other site on %s", (<-attacker.heard).Subject)
	}
	harness.Eventually(t, "the refusal of all subjects", 5*time.Minute, func() bool { return len(attacker.refused) == 4+5+4 })

	// Each leaf node admits the workers of its own site alone.
	for name, file := range map[string]string{
		"a worker of the other site": sites["w2"].creds("w2"), "the site itself": filepath.Join(sites["w1"].dir, "creds", "leaf-paris.nk"),
		"a trainer": filepath.Join(h.dir, "creds", "trainer-alpha.nk"), "the admin": filepath.Join(h.dir, "creds", "admin.nk"),
	} {
		key, err := nats.NkeyOptionFromSeed(file)
		harness.Must(t, err)
		if nc, err := nats.Connect(sites["w1"].url, key); err == nil {
			nc.Close()
			t.Errorf("the leaf node admits %s", name)
		}
	}
	if _, err := os.Stat(filepath.Join(sites["w1"].dir, "creds", "worker-w2.nk")); err == nil {
		t.Error("the site has a credential of the other one")
	}
}

// ear is a client of a leaf node with the credential of a worker.
type ear struct {
	nc      *nats.Conn
	heard   chan *nats.Msg
	refused chan error
}

func leafEar(t *testing.T, s leafSite, worker string) ear {
	t.Helper()
	e := ear{heard: make(chan *nats.Msg, 10_000), refused: make(chan error, 100)}
	key, err := nats.NkeyOptionFromSeed(s.creds(worker))
	harness.Must(t, err)
	e.nc, err = nats.Connect(s.url, key, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { e.refused <- err }))
	harness.Must(t, err)
	t.Cleanup(e.nc.Close)
	return e
}

// listen passes the messages of a subject on.
func (e ear) listen(t *testing.T, subject string) {
	t.Helper()
	_, err := e.nc.ChanSubscribe(subject, e.heard)
	harness.Must(t, err)
	harness.Must(t, e.nc.Flush())
}
