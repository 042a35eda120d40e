package chaos_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// hostileName is a trainer with a credential of its own, which attacks the others.
const hostileName = "mallory"

// attacks is the kind of its messages in the counts of faults.
const attacks = "attack of another trainer"

// hostile publishes messages that must have no effect for other trainers.
type hostile struct {
	nc    *nats.Conn
	b     *bench
	rng   *mathrand.Rand
	count int
	done  sync.WaitGroup
}

// attack starts the attacks, which go on until the context ends.
func attack(t *testing.T, ctx context.Context, b *bench, seed uint64) *hostile {
	t.Helper()
	key, err := nats.NkeyOptionFromSeed(b.creds("trainer-" + hostileName))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.url(), key, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond),
		nats.CustomInboxPrefix("_INBOX.trainer."+hostileName), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // each refusal is one
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{nc: nc, b: b, rng: mathrand.New(mathrand.NewPCG(seed, 1))}
	h.done.Go(func() {
		defer nc.Close()
		all := h.attacks()
		for wait(ctx, 50*time.Millisecond) {
			for _, m := range all[h.rng.IntN(len(all))]() {
				if nc.PublishMsg(m) == nil { // otherwise the broker is down
					h.count++
				}
			}
		}
		_ = nc.Flush()
	})
	return h
}

// attacks lists the attacks. Each makes the messages of one round.
func (h *hostile) attacks() []func() []*nats.Msg {
	return []func() []*nats.Msg{h.foreignSubject, h.foreignRequest, h.foreignCancel, h.garbage, h.longRequest, h.forgedReply, h.endlessBatch, h.rollup, h.takenID}
}

// victim is a rollout of another trainer, which may exist.
func (h *hostile) victim() schema.ID {
	return schema.ID(fmt.Sprintf("%s-r%d", h.b.trainers[h.rng.IntN(len(h.b.trainers))].name, h.rng.IntN(100)))
}

func (h *hostile) lane() string { return subjects.Request(h.rng.IntN(4), hostileName) }

// state is a forged record that ends a rollout.
func forged(id schema.ID) []byte {
	data, err := schema.Encode(&schema.State{V: schema.Version, ID: id, Trainer: id.Trainer(), Status: schema.StatusDone, Attempt: 1, Tries: 1})
	if err != nil {
		panic(err)
	}
	return data
}

func (h *hostile) request(id schema.ID) []byte {
	r := schema.Request{
		V: schema.Version, ID: id, Trainer: id.Trainer(), Task: schema.Task{Name: "attack", Instruction: "work"},
		Agent: schema.AgentChoice{Name: "command", Args: []string{"poison"}}, Sandbox: schema.SandboxChoice{Backend: "dummy"},
	}
	data, err := schema.Encode(&r)
	if err != nil {
		panic(err)
	}
	return data
}

// targets are subjects on which a forged message would do harm.
func (h *hostile) targets() []string {
	id := h.victim()
	tid := id.Trainer()
	out := []string{
		subjects.State(id), subjects.Result(id), subjects.RequestCopy(id), subjects.Request(0, tid),
		subjects.TrainerCancel(tid), subjects.Hold(tid), subjects.TrainerResults(tid), subjects.WorkerControl("w0"), subjects.Lease("w0", "p1"), subjects.JanitorLease,
		subjects.Presence("w0", "p1"), "_INBOX.gate." + tid + ".w0.p1." + randomToken(), "_INBOX.worker.w0.p1." + randomToken(), "_INBOX.trainer." + tid + "." + randomToken(), subjects.Dead("unreadable", subjects.Queue(tid)),
		subjects.Event(id, "phase"), subjects.Live(id, 1),
	}
	for _, stream := range append(queuesOf([]string{tid}), subjects.Records(tid), subjects.StreamEvents, subjects.StreamLeases) {
		for _, verb := range []string{"DELETE", "PURGE", "UPDATE", "INFO"} {
			out = append(out, "$JS.API.STREAM."+verb+"."+stream)
		}
	}
	return out
}

func randomToken() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func (h *hostile) target() string {
	all := h.targets()
	return all[h.rng.IntN(len(all))]
}

// foreignSubject publishes on a subject of others.
func (h *hostile) foreignSubject() []*nats.Msg {
	subject := h.target()
	data := forged(h.victim())
	if subject == subjects.WorkerControl("w0") {
		data, _ = schema.Encode(&schema.Control{V: schema.Version, Do: schema.ControlCancel, ID: h.victim(), Attempt: 1})
	}
	return []*nats.Msg{{Subject: subject, Data: data}}
}

// foreignRequest submits another trainer's rollout on the own lane.
func (h *hostile) foreignRequest() []*nats.Msg {
	return []*nats.Msg{{Subject: h.lane(), Data: h.request(h.victim())}}
}

func (h *hostile) foreignCancel() []*nats.Msg {
	data, err := schema.Encode(&schema.Cancel{V: schema.Version, IDs: []schema.ID{h.victim(), h.victim()}, Reason: "attack"})
	if err != nil {
		panic(err)
	}
	return []*nats.Msg{{Subject: subjects.TrainerCancel(hostileName), Data: data}}
}

// garbage is no message of the protocol.
func (h *hostile) garbage() []*nats.Msg {
	data := make([]byte, h.rng.IntN(200))
	_, _ = rand.Read(data)
	return []*nats.Msg{{Subject: h.lane(), Data: data}}
}

// longRequest is larger than the protocol allows.
func (h *hostile) longRequest() []*nats.Msg {
	return []*nats.Msg{{Subject: h.lane(), Data: make([]byte, 1<<20)}}
}

// forgedReply lets the server answer on a subject of others.
func (h *hostile) forgedReply() []*nats.Msg {
	asks := []string{
		h.lane(), "$JS.API.INFO", "$JS.API.STREAM.INFO." + subjects.Records(hostileName), "$JS.API.STREAM.MSG.GET." + subjects.Records(hostileName),
		subjects.TrainerFleet(hostileName), "trainer." + hostileName + ".open",
	}
	m := &nats.Msg{Subject: asks[h.rng.IntN(len(asks))], Reply: h.target()}
	if h.rng.IntN(2) == 0 { // the first message of a batch has an empty answer
		m.Header = nats.Header{"Nats-Batch-Id": {randomToken()}, "Nats-Batch-Sequence": {"1"}}
	}
	return []*nats.Msg{m}
}

// endlessBatch begins batches and ends none.
func (h *hostile) endlessBatch() []*nats.Msg {
	var out []*nats.Msg
	for range 20 {
		id := randomToken()
		for n := range 3 {
			out = append(out, &nats.Msg{Subject: h.lane(), Header: nats.Header{"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {strconv.Itoa(n + 1)}}, Data: []byte("x")})
		}
	}
	return out
}

// rollup replaces everything in a bucket.
func (h *hostile) rollup() []*nats.Msg {
	var out []*nats.Msg
	for _, bucket := range bucketsOf(h.victim().Trainer(), hostileName) {
		out = append(out, &nats.Msg{Subject: subjects.ObjectMeta(bucket, "x"), Header: nats.Header{"Nats-Rollup": {"all"}}})
	}
	return out
}

// takenID makes the submit of another trainer a duplicate, if ids of messages are
// shared.
func (h *hostile) takenID() []*nats.Msg {
	return []*nats.Msg{{Subject: h.lane(), Header: nats.Header{"Nats-Msg-Id": {string(h.victim())}}, Data: []byte("x")}}
}
