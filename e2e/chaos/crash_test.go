package chaos_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/crash"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/subjects"
)

// TestACrashBetweenEveryTwoSteps lets a process die at every crash point in the
// code, and checks that the others and the restarted one bring every rollout to
// exactly one result.
func TestACrashBetweenEveryTwoSteps(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	bin := build(t)
	unused := ways()
	for _, point := range crashPoints(t) {
		group, _, _ := strings.Cut(point, ".")
		delete(unused, group)
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			way := ways()[group]
			if way == nil {
				t.Fatalf("no script leads to the crash points %s.…: add one to ways", group)
			}
			way(t, bin, point)
		})
	}
	for group := range unused {
		t.Errorf("no crash point is named %s.…: remove its script from ways", group)
	}
}

// ways returns a script for each group of crash points, which leads a process to
// the point.
func ways() map[string]func(*testing.T, binaries, string) {
	return map[string]func(*testing.T, binaries, string){
		"claim": func(t *testing.T, bin binaries, point string) {
			t.Run("first", func(t *testing.T) { crashWhileWorking(t, bin, point) })
			t.Run("take-over", func(t *testing.T) { crashInTakeover(t, bin, "", point) })
		},
		"copy":     crashAtLostClaim,
		"handover": crashInHandover,
		"takeover": func(t *testing.T, bin binaries, point string) {
			first := ""
			if point == "takeover.finished" { // it needs a result without a terminal state
				first = "commit.between"
			}
			crashInTakeover(t, bin, first, point)
		},
		"commit": crashWhileWorking,
		"cancel": func(t *testing.T, bin binaries, point string) {
			workAndCrash(t, bin, point, "-calls", "40", "-cancel-after", "2500ms")
		},
		"park": func(t *testing.T, bin binaries, point string) {
			workAndCrash(t, bin, point, "-delay", "500ms")
		},
		"return":  crashInDrain,
		"dead":    crashAtGarbage,
		"janitor": crashOfJanitor,
		"full":    crashAtFullTrainer,
		"trainer": crashOfTrainer,
		"ledger":  crashOfLedger,
	}
}

func crashEnv(point string) string { return crash.EnvPoint + "=" + point }

// crashWhileWorking gives a worker rollouts.
func crashWhileWorking(t *testing.T, bin binaries, point string) {
	t.Helper()
	workAndCrash(t, bin, point)
}

func workAndCrash(t *testing.T, bin binaries, point string, flags ...string) {
	t.Helper()
	b := newBench(t, bin, 0, nil, append([]string{"-rollouts", "8"}, flags...)...)
	w := b.add(crashEnv(point))
	b.await(w, "ready")
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitCrash(t, b, point, w)
	recoverFrom(t, b, p)
}

// crashInTakeover lets a worker with rollouts die, at a point of its own or by a kill,
// and then its heir while it takes them over.
func crashInTakeover(t *testing.T, bin binaries, first, point string) {
	t.Helper()
	b := newBench(t, bin, 0, nil, "-rollouts", "4", "-calls", "20")
	w := b.add(crashEnv(first))
	b.await(w, "ready")
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 4, time.Minute) // all of them
	if first == "" {
		b.kill(w)
	} else {
		awaitCrash(t, b, first, w)
	}
	heir := b.add(crashEnv(point))
	awaitCrash(t, b, point, heir)
	recoverFrom(t, b, p)
}

// killedWorker returns a bench with a killed worker that had rollouts of the trainer
// alpha.
func killedWorker(t *testing.T, bin binaries) (b *bench, w *process, p *tap) {
	t.Helper()
	b = newBench(t, bin, 0, nil, "-rollouts", "8", "-calls", "20")
	w = b.add()
	b.await(w, "ready")
	p = openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 4, time.Minute)
	b.kill(w)
	return b, w, p
}

// crashInHandover kills a worker with rollouts, and its next instance.
func crashInHandover(t *testing.T, bin binaries, point string) {
	t.Helper()
	b, w, p := killedWorker(t, bin)
	w.env = []string{crashEnv(point)}
	b.start(w)
	awaitCrash(t, b, point, w)
	recoverFrom(t, b, p)
}

// crashAtLostClaim cuts a worker's connections while the answer to a claim is on its
// way. It is on its way for so long that the run sees the claim before.
func crashAtLostClaim(t *testing.T, bin binaries, point string) {
	t.Helper()
	b := emptyBench(t, bin)
	b.slots = 32 // so that some are free
	b.begin(0, nil, []string{"-rollouts", "40", "-calls", "8", "-harmless"})
	w := b.add(crashEnv(point))
	b.await(w, "ready")
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 1, time.Minute)
	w.proxy.Set(false, false, time.Second)
	p.mu.Lock()
	claims := len(p.owner)
	p.mu.Unlock()
	p.until(t, "a claim", time.Minute, func() bool { return len(p.owner) > claims })
	w.proxy.Cut()
	w.proxy.Heal()
	awaitCrash(t, b, point, w)
	recoverFrom(t, b, p)
}

// crashInDrain stops a worker with rollouts.
func crashInDrain(t *testing.T, bin binaries, point string) {
	t.Helper()
	b := newBench(t, bin, 0, nil, "-rollouts", "8", "-calls", "20")
	w := b.add(crashEnv(point))
	b.await(w, "ready")
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 4, time.Minute)
	b.signal(w, syscall.SIGTERM)
	awaitCrash(t, b, point, w)
	recoverFrom(t, b, p)
}

// crashAtGarbage puts a message on the queue that cannot be read.
func crashAtGarbage(t *testing.T, bin binaries, point string) {
	t.Helper()
	b := newBench(t, bin, 0, nil, "-rollouts", "8")
	w := b.add(crashEnv(point))
	b.await(w, "ready")
	p := openTap(t, b)
	b.start(b.trainers[0])
	awaitAgents(t, b, 1, time.Minute) // then the trainer's queue exists
	if err := p.nc.PublishMsg(&nats.Msg{Subject: subjects.Request(0, "alpha"), Data: []byte("not msgpack")}); err != nil {
		t.Fatal(err)
	}
	awaitCrash(t, b, point, w)
	recoverFrom(t, b, p)
	s, err := p.js.Stream(t.Context(), subjects.StreamDead)
	if err != nil || s.CachedInfo().State.Msgs != 1 {
		t.Errorf("the DEAD stream has %+v, %v", s.CachedInfo().State, err)
	}
}

// crashOfJanitor loses the queue while its worker dies, so that the janitor has
// something to do.
func crashOfJanitor(t *testing.T, bin binaries, point string) {
	t.Helper()
	b, w, p := killedWorker(t, bin)
	purgeQueues(t, p, "alpha")
	w.env = []string{crashEnv(point)}
	b.start(w)
	awaitCrash(t, b, point, w)
	recoverFrom(t, b, p)
}

// crashAtFullTrainer brings a trainer's records above their bound while a worker with
// its rollouts dies, so that the janitor moves their requests.
func crashAtFullTrainer(t *testing.T, bin binaries, point string) {
	t.Helper()
	b, w, p := killedWorker(t, bin)
	began := records(t, p, subjects.StateFilter("alpha"))
	boundRecords(t, p, "alpha", 1)
	w.env = []string{crashEnv(point)}
	b.start(w)
	awaitCrash(t, b, point, w)
	w.env = nil
	b.start(w)
	harness.Eventually(t, "the results of all rollouts that had begun", 5*time.Minute, func() bool { return records(t, p, subjects.ResultFilter("alpha")) >= began })
	boundRecords(t, p, "alpha", broker.AnyRecordBytes)
	recoverFrom(t, b, p)
}

// records counts the records of trainer alpha on these subjects.
func records(t *testing.T, p *tap, filter string) int {
	t.Helper()
	s, err := p.js.Stream(t.Context(), subjects.Records("alpha"))
	harness.Must(t, err)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(filter))
	harness.Must(t, err)
	return len(info.State.Subjects)
}

// boundRecords changes the bound of a trainer's records. Workers that run see it
// later.
func boundRecords(t *testing.T, p *tap, trainer string, most int64) {
	t.Helper()
	s, err := p.js.Stream(t.Context(), subjects.Queue(trainer))
	harness.Must(t, err)
	c := s.CachedInfo().Config
	c.Metadata["turngate.max_record_bytes"] = strconv.FormatInt(most, 10)
	_, err = p.js.UpdateStream(t.Context(), c)
	harness.Must(t, err)
}

// crashOfTrainer lets the trainer die. Accepts, beats and faults occur only in
// slow calls.
func crashOfTrainer(t *testing.T, bin binaries, point string) {
	t.Helper()
	b := newBench(t, bin, 1, nil, "-rollouts", "8", "-slow", "6s")
	p := openTap(t, b)
	b.trainers[0].env = []string{crashEnv(point)}
	b.start(b.trainers[0])
	awaitCrash(t, b, point, b.trainers[0])
	recoverFrom(t, b, p)
}

// crashOfLedger lets the trainer die while it writes its ledger: at a submit, and
// when it starts again with open rollouts.
func crashOfLedger(t *testing.T, bin binaries, point string) {
	t.Helper()
	b := newBench(t, bin, 1, nil, "-rollouts", "8", "-calls", "4")
	p := openTap(t, b)
	trainer := b.trainers[0]
	if point != "ledger.submitted" && point != "ledger.noted" {
		b.start(trainer)
		awaitAgents(t, b, 4, time.Minute)
		b.kill(trainer)
	}
	trainer.env = []string{crashEnv(point)}
	b.start(trainer)
	awaitCrash(t, b, point, trainer)
	recoverFrom(t, b, p)
}

// recoverFrom starts another worker and restarts the dead processes without their
// crash point, and checks the outcome.
func recoverFrom(t *testing.T, b *bench, p *tap) {
	t.Helper()
	b.await(b.add(), "ready")
	f := newInjector(b, p, 0)
	for _, x := range b.all() {
		x.env = nil
		if !x.alive() && !x.over() {
			b.start(x)
			f.dead[x]++
		}
	}
	if err := f.enough(); err != nil {
		t.Fatal(err)
	}
	for invariant, list := range f.finish(t, !f.allEnded(60*time.Second)).violations {
		t.Errorf("%s: %s", invariant, strings.Join(list, "; "))
	}
}

// awaitCrash waits until one of these processes has died at the point.
func awaitCrash(t *testing.T, b *bench, point string, any ...*process) {
	t.Helper()
	died := make(chan *process, len(any))
	for _, p := range any {
		go func(ended chan struct{}) {
			<-ended
			died <- p
		}(p.ended)
	}
	var p *process
	select {
	case p = <-died:
	case <-time.After(40 * time.Second):
		t.Fatalf("no process came to %s", point)
	}
	log, err := os.ReadFile(filepath.Join(b.dir, p.role+".log"))
	if err != nil || !strings.Contains(string(log), "crash: "+point+"\n") {
		t.Fatalf("%s died of something else than %s: %v", p.role, point, err)
	}
}

// purgeQueues deletes every request of a trainer from the queues.
func purgeQueues(t *testing.T, p *tap, trainer string) {
	t.Helper()
	for _, name := range queuesOf([]string{trainer}) {
		s, err := p.js.Stream(t.Context(), name)
		if err == nil {
			err = s.Purge(t.Context(), jetstream.WithPurgeKeep(0))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
