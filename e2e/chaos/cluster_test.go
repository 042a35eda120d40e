package chaos_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/testenv"
)

// cluster has three servers, each pair of which is connected through proxies.
type cluster struct {
	servers []*process
	links   [3][3]*testenv.Proxy // from the one to the other
}

// beginCluster starts three servers and workers, and prepares a trainer.
func (b *bench) beginCluster(workers int, trainerFlags ...string) *cluster {
	t, c := b.t, &cluster{}
	t.Helper()
	creds := filepath.Join(b.dir, "nats", "creds")
	var ports, clusterPorts [3]int
	for i := range 3 {
		ports[i], clusterPorts[i] = testenv.FreePort(t), testenv.FreePort(t)
	}
	// Servers tell each other their addresses. This one leads nowhere, so that they
	// use the proxies.
	nowhere := "127.0.0.1:" + itoa(testenv.FreePort(t))
	for i := range 3 {
		var routes []string
		for j := range 3 {
			if i != j {
				c.links[i][j] = testenv.NewProxy(t, "127.0.0.1:"+itoa(clusterPorts[j]))
				routes = append(routes, c.links[i][j].Addr())
			}
		}
		s := &process{role: "nats" + itoa(i), argv: []string{
			b.bin.turngate, "nats", "--state", filepath.Join(b.dir, "n"+itoa(i)), "--port", itoa(ports[i]), "--trainers", "alpha", "--workers", workerNames(), "--relaxed-sync",
			"--cluster-name", "n" + itoa(i), "--cluster-port", itoa(clusterPorts[i]), "--cluster-advertise", nowhere, "--routes", strings.Join(routes, ","), "--creds-dir", creds,
		}}
		c.servers = append(c.servers, s)
		b.start(s)
		b.servers = append(b.servers, "nats://127.0.0.1:"+itoa(ports[i]))
	}
	t.Cleanup(func() {
		for _, s := range c.servers {
			b.kill(s)
		}
	})
	for _, s := range c.servers {
		b.await(s, "more")
	}
	b.nats, b.peers, b.port = c.servers[0], c.servers[1:], ports[0]
	for range workers {
		b.addAt(b.url(), nil, nil, "-replicas", "3")
	}
	for _, w := range b.workers {
		b.await(w, "ready")
	}
	b.prepare(nil, trainerFlags)
	return c
}

// part separates one server from the others, both ways, or joins it again.
func (c *cluster) part(i int, apart bool) {
	for j := range 3 {
		if i != j {
			c.links[i][j].Set(apart, apart, 0)
			c.links[j][i].Set(apart, apart, 0)
		}
	}
}

// Three servers keep three copies. The death of one at any time has no effect; the
// death of two only pauses all rollouts.
func TestACluster(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := emptyBench(t, build(t))
	c := b.beginCluster(3, "-rollouts", "200")
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 6, time.Minute)
	for i := range 6 { // each server dies twice, so every leader dies
		s := c.servers[i%3]
		b.kill(s)
		<-time.After(time.Second)
		b.start(s)
		b.await(s, "more")
		<-time.After(2 * time.Second)
	}
	b.kill(c.servers[0])
	b.kill(c.servers[1]) // no quorum
	<-time.After(2 * ackWait)
	for _, s := range c.servers[:2] {
		b.start(s)
		b.await(s, "more")
	}
	r := conclude(t, b, p, 120*time.Second)
	t.Logf("%d rollouts, %d take-overs over six dead servers and a lost quorum", r.rollouts, r.takeovers)
}

// TestAClusterUnderFaults separates servers from each other, with the leader of any
// stream on either side, while workers are killed, suspended and drained and
// servers die.
func TestAClusterUnderFaults(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	seed := uint64(setting(t, "CHAOS_SEED", int(time.Now().Unix())))
	b := emptyBench(t, build(t))
	c := b.beginCluster(4)
	p := openTap(t, b)
	b.start(b.trainers[0])
	f := newInjector(b, p, seed)
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	f.only = []string{"worker killed", "worker stopped for a moment", "worker stopped beyond its lease", "worker drained", "trainer killed", "clock stepped", "duplicate submitted", "acks and results sent again"}
	f.also = []fault{
		{"servers apart", 8, func(ctx context.Context) {
			i := f.rng.IntN(3)
			c.part(i, true)
			wait(ctx, time.Duration(1000+f.rng.IntN(8000))*time.Millisecond)
			c.part(i, false)
		}},
		{"server killed", 3, func(ctx context.Context) {
			s := c.servers[f.rng.IntN(3)]
			b.kill(s)
			wait(ctx, time.Duration(f.rng.IntN(3000))*time.Millisecond)
			b.start(s)
		}},
	}
	f.run(ctx)
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	f.mend()
	r := f.finish(t, !f.allEnded(2*time.Minute))
	for invariant, list := range r.violations {
		t.Errorf("%s, seed %d: %s", invariant, seed, strings.Join(list[:min(len(list), 5)], "; "))
	}
	t.Logf("seed %d: %d rollouts, %d take-overs, %d fenced attempts, %v", seed, r.rollouts, r.takeovers, r.fenced, f.count)
}

// A network with 500 ms in each direction and 5 % lost messages slows rollouts
// down, and no worker counts as dead.
func TestASlowAndLossyNetwork(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	b := emptyBench(t, build(t))
	b.speed, b.steady = 2, true // the lease must be longer than some round trips
	b.begin(2, nil, []string{"-rollouts", "8", "-harmless"})
	p := openTap(t, b)
	for _, w := range b.workers {
		w.proxy.Set(false, false, 500*time.Millisecond)
		w.proxy.Lose(0.05, 0.05)
	}
	b.start(b.trainers[0])
	awaitAgents(t, b, 8, 3*time.Minute)
	f := newInjector(b, p, 0)
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	ended := f.allEndedAsItIs(3 * time.Minute)
	lost := 0
	for _, w := range b.workers {
		lost += w.proxy.Lost()
	}
	f.mend()
	r := f.finish(t, !ended)
	for invariant, list := range r.violations {
		t.Errorf("%s: %s", invariant, strings.Join(list[:min(len(list), 5)], "; "))
	}
	if r.rollouts != 8 {
		t.Errorf("%d of 8 rollouts were submitted", r.rollouts)
	}
	if lost == 0 {
		t.Error("no message was lost")
	}
	t.Logf("%d rollouts, %d executions, %d lost messages", r.rollouts, r.executions, lost)
}
