// Package trainer connects a training loop to turngate: it submits rollouts,
// answers the agents' model calls, and collects results.
//
// Dial connects. A pulling loop calls Next and answers each Pending when it likes;
// Serve calls a function for each call. The package accepts calls, keeps them alive with
// beats and keeps each answer, so a worker that asks again gets the same one. A new
// generation begins only after a retryable fault, a refused answer or a restart.
package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// Trainer is the connection of one process under a trainer's name. Several processes
// may use one name, each with its own shard. It is safe for concurrent use.
type Trainer struct {
	base  *base
	own   *broker.Broker // the connection that Dial made; nil: the caller's
	unsub []func()

	// the shard
	attachment *attachment
	orphans    *orphans

	// rollouts of this process
	outstanding *outstanding
	submitter   *submitter
	duplicates  *duplicates
	adopter     *adopter
	bundles     *bundles
	auditor     *auditor
	cancels     *cancels
	backlog     *backlog
	blockers    *blockers
	obstacles   *obstacles
	endings     *endings
	poller      *poller
	results     *results

	// their calls
	rollouts      *rollouts
	receiver      *receiver
	handout       *handout
	holds         *holds
	beats         *beats
	tools         *tools
	verifications *verifications
	refusals      *refusals
}

// startTimeout bounds the wait for this trainer's streams. If one is missing, the
// trainer asks any worker to make it.
const startTimeout = 30 * time.Second

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the trainer is closed")

// Dial connects a trainer to NATS. From then on it accepts calls. The context
// bounds the connecting. If this trainer's streams do not exist yet, Dial waits up to
// 30 s for a worker that makes them. A wrong field of the configuration gives a
// *schema.InvalidError; other errors are of the connection or the State file.
func Dial(ctx context.Context, c Config) (_ *Trainer, err error) {
	if err := schema.CheckTrainer(c.Name); err != nil {
		return nil, err
	}
	c.Shard, c.Orphans = cmp.Or(c.Shard, schema.DefaultShard), cmp.Or(c.Orphans, ReplaceOrphans)
	if err := cmp.Or(schema.CheckToken("shard", c.Shard), checkSlots(c.Slots), checkOrphans(c.Orphans)); err != nil {
		return nil, err
	}
	var own *broker.Broker
	if c.Broker == nil {
		own, err = broker.Dial(ctx, broker.Config{URL: c.URL, Creds: c.Creds, Name: "trainer " + c.Name, Inbox: broker.InboxFor("trainer", c.Name), Log: c.Log})
		if err != nil {
			return nil, err
		}
		c.Broker = own
	}
	t, err := start(ctx, c)
	if err != nil {
		if own != nil {
			own.Close()
		}
		return nil, err
	}
	t.own = own
	return t, nil
}

// start starts a trainer on an open connection.
func start(ctx context.Context, c Config) (*Trainer, error) {
	c.AuditEvery = cmp.Or(c.AuditEvery, auditEvery)
	b, err := newBase(c)
	if err != nil {
		return nil, err
	}
	ledger, known, err := openLedger(c.State, c.Shard, c.Log)
	if err != nil {
		b.stop(err)
		return nil, err
	}
	t := newTrainer(b, ledger)
	for id, s := range known {
		t.outstanding.add(s)
		t.outstanding.hints.add(s.request.Group, id) // its result may have arrived
		t.outstanding.works()
	}
	if err := t.run(ctx, slices.Collect(maps.Keys(known))); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// newTrainer joins the parts of a trainer.
func newTrainer(b *base, l *ledger) *Trainer {
	t := &Trainer{base: b}
	t.outstanding = newOutstanding(b.cfg, l)
	t.rollouts = newRollouts(b)
	which := selector{t.outstanding, t.rollouts}
	t.handout = &handout{base: b, selector: which, arrived: make(chan struct{}, 1)}
	t.holds = &holds{base: b, selector: which, handout: t.handout, sent: releases}
	t.beats = &beats{rollouts: t.rollouts, handout: t.handout}
	t.tools, t.verifications, t.refusals = &tools{b, t.beats}, &verifications{b, t.beats}, &refusals{base: b, rollouts: t.rollouts}

	t.cancels = &cancels{base: b, outstanding: t.outstanding, orphans: map[schema.ID]uint64{}}
	t.endings = newEndings(b, t.outstanding, t.rollouts, t.cancels)
	t.results = &results{b, t.outstanding, t.outstanding.hints, t.rollouts, t.endings, t.cancels}
	t.bundles = &bundles{base: b, of: map[string][]byte{}}
	t.auditor = &auditor{b, t.outstanding, t.endings, t.bundles}
	t.poller = &poller{base: b, hints: t.outstanding.hints, endings: t.endings, auditor: t.auditor}
	t.submitter = &submitter{b, t.outstanding, t.holds}
	t.duplicates = &duplicates{b, t.outstanding}
	t.adopter = &adopter{base: b, outstanding: t.outstanding, endings: t.endings, submitter: t.submitter}
	t.backlog = &backlog{b, t.outstanding}
	t.blockers = &blockers{base: b, outstanding: t.outstanding}
	t.obstacles = &obstacles{base: b, backlog: t.backlog, blockers: t.blockers, rollouts: t.rollouts, handout: t.handout, logged: map[string]bool{}}

	t.orphans = &orphans{b, t.outstanding, t.adopter, t.cancels}
	t.attachment = newAttachment(b, l.owner, t.orphans.look)
	t.receiver = &receiver{
		base: b, attachment: t.attachment, outstanding: t.outstanding, rollouts: t.rollouts, rebuilder: &rebuilder{base: b, rollouts: t.rollouts}, handout: t.handout,
		beats: t.beats, endings: t.endings, orphans: t.orphans, refusals: t.refusals, tools: t.tools, verifications: t.verifications,
	}
	return t
}

// run subscribes, attaches this process to its shard, and starts the work in the
// background. The restored rollouts are outstanding from an earlier process.
func (t *Trainer) run(ctx context.Context, restored []schema.ID) error {
	b := t.base
	if err := t.poller.open(ctx); err != nil {
		return err
	}
	for _, subscribe := range []func() (func(), error){
		func() (func(), error) {
			return b.requests.Processes.Heard(b.instance, func() { wake(t.attachment.displaced) })
		},
		func() (func(), error) { return b.requests.Results.Hints(t.endings.onHint) },
		func() (func(), error) { return b.server.Listen(b.cfg.Shard, t.receiver.onCall) },
		func() (func(), error) { return t.tools.listen(t.receiver.onCall) },
		func() (func(), error) { return t.verifications.listen(t.receiver.onCall) },
	} {
		unsub, err := subscribe()
		if err != nil {
			return err
		}
		t.unsub = append(t.unsub, unsub)
	}
	if err := t.attachment.attach(ctx); err != nil {
		return err
	}
	b.bg.Go(t.attachment.keep)
	b.every(acceptAfter/2, t.beats.accept)
	b.every(beatEvery, t.beats.beat)
	b.every(beatEvery, t.holds.announce)
	b.every(b.cfg.AuditEvery, t.auditor.audit)
	b.every(cancelEvery, t.cancels.repeat)
	b.every(pollEvery, t.poller.poll)
	b.every(queueEvery, t.obstacles.look)
	b.bg.Go(t.endings.run)
	if b.cfg.Slots > 0 {
		b.bg.Go(func() { t.endings.lookAtRestored(restored) })
	}
	return nil
}

// Ready returns nil while calls of this trainer's shard reach this process, otherwise the
// reason why they do not: it has no connection to NATS, it does not have its shard yet, or it
// has ended.
func (t *Trainer) Ready() error {
	switch {
	case t.base.life.Err() != nil:
		return context.Cause(t.base.life)
	case !t.base.cfg.Broker.Connected():
		return errors.New("it has no connection to NATS")
	case !t.attachment.attached.Load():
		return fmt.Errorf("it does not have the calls of shard %s of trainer %s: its log has the reason", t.base.cfg.Shard, t.base.cfg.Name)
	}
	return nil
}

// Close stops the trainer. It does not answer open calls: their workers ask
// another process of this trainer, or this one after a restart.
func (t *Trainer) Close() {
	t.base.end(ErrClosed)
	for _, u := range t.unsub {
		u()
	}
	t.handout.close()
	t.base.bg.Wait()
	t.outstanding.ledger.close()
	if t.own != nil {
		t.own.Close()
	}
}

// NewID returns the id of a rollout of this trainer for a name of the caller's.
// The same name gives the same id.
func (t *Trainer) NewID(name string) (schema.ID, error) { return schema.NewID(t.base.cfg.Name, name) }

// Submit puts requests on the queue and makes them outstanding; it sets their
// Trainer to this one. Adjacent requests of one group are queued all or none,
// at most 1000 of them. While all slots are taken, the queue is full or the
// broker cannot be reached, Submit waits. If the context ends first, the error has
// the reason (queue.ErrQueueFull), and requests that are surely not on the queue are
// not outstanding; see ErrUnsure for the others. An invalid request, or one for
// an agent or a kind of sandbox that no live worker has, is refused before any request is
// queued.
func (t *Trainer) Submit(ctx context.Context, requests []schema.Request) error {
	return t.submitter.submit(ctx, requests)
}

// SubmitNew is Submit for rollouts that no process has submitted before. Submit gives
// the results of an earlier rollout with the same id; SubmitNew fails with an
// *ExistsError and submits none. It looks among the records, which are kept for the
// retention of the workers, and the oldest 2,000 messages of the queue.
func (t *Trainer) SubmitNew(ctx context.Context, requests []schema.Request) error {
	if _, err := t.submitter.batches(requests); err != nil {
		return err
	}
	if err := t.duplicates.check(ctx, requests); err != nil {
		return err
	}
	return t.submitter.submit(ctx, requests)
}

// Adopt makes rollouts outstanding here that another process of this trainer
// may have submitted. It collects the results of ended rollouts, waits for
// rollouts that workers know, and submits the others. A rollout that is still
// in the queue is queued twice and runs once. All get the shard of this process. Calls of
// rollouts that run with another shard still go there, and a warning says so. With
// ReplaceOrphans adopt before the first Submit, which ends rollouts of earlier processes.
func (t *Trainer) Adopt(ctx context.Context, requests []schema.Request) error {
	return t.adopter.adopt(ctx, requests)
}

// Load counts the rollouts and calls that wait at this moment, to set slots by.
func (t *Trainer) Load() Load { return loadOf(t.outstanding, t.rollouts, t.handout) }

// SetSlots changes Config.Slots from now on. An error names a negative number.
func (t *Trainer) SetSlots(most int) error { return t.outstanding.slots.set(most) }

// Outstanding returns the number of submitted rollouts without a delivered
// result.
func (t *Trainer) Outstanding() int { return t.outstanding.count("") }

// NextResult waits for the next result of a rollout that was submitted here,
// and returns each result once. It also finds results after a lost hint.
func (t *Trainer) NextResult(ctx context.Context) (schema.Result, error) {
	r, _, err := t.results.next(ctx, "", true)
	return r, err
}

// Results calls f with each result until no submitted rollout is outstanding.
func (t *Trainer) Results(ctx context.Context, f func(schema.Result)) error {
	return t.results.each(ctx, Wanted{}, f)
}

// ResultsOf calls f with each wanted result until no wanted rollout is
// outstanding. When a group has enough usable results, its other rollouts are
// cancelled before f gets the last of these; they give results, too. Only the
// results of this call count. Several calls may run at once: each result goes to
// one of them. When its context ends, a call leaves its other results to later calls.
func (t *Trainer) ResultsOf(ctx context.Context, w Wanted, f func(schema.Result)) error {
	return t.results.each(ctx, w, f)
}

// Cancel ends rollouts, queued or running. Each still gets a result: cancelled,
// or its own if it ended first. The reason, of at most 1024 bytes, becomes a part of
// the message of the result's fault. Cancels of rollouts that are outstanding here
// are repeated until the result arrives.
func (t *Trainer) Cancel(ids []schema.ID, reason string) error { return t.cancels.cancel(ids, reason) }

// CancelGroup ends the outstanding rollouts of a group.
func (t *Trainer) CancelGroup(group, reason string) error {
	return t.cancels.cancelThose(func(r *schema.Request) bool { return r.Group == group }, reason)
}

// CancelOlder ends the rollouts with an answer of a policy version below a number:
// for a trainer at version v that allows n versions between them, below v-n. The
// number of a version is the one at the end of its name. Only this process's
// answers to the rollout's last attempt count.
func (t *Trainer) CancelOlder(version int64, reason string) error {
	return t.cancels.cancel(t.rollouts.older(version), reason)
}

// CancelAll ends every outstanding rollout.
func (t *Trainer) CancelAll(reason string) error {
	return t.cancels.cancelThose(func(*schema.Request) bool { return true }, reason)
}

// Hold makes the calls of the selected rollouts wait from now on, for example
// while weights are updated. It replaces any earlier hold. Calls to this trainer
// are accepted and kept alive but not handed out; workers with an upstream of
// their own hold their calls. Calls that were handed out or sent to an upstream
// go on; see Abort. Workers learn of the hold within a moment, and resume 40 s
// after they last heard from a trainer that held.
func (t *Trainer) Hold(s Selection) { t.holds.set(&s) }

// Resume ends any hold and hands out the waiting calls.
func (t *Trainer) Resume() { t.holds.set(nil) }

// Abort ends the generations of the selected rollouts that this process has
// begun, and returns their number: their contexts end, and their workers ask
// again. With a hold of the same rollouts before it, no generation goes on while
// weights are updated, and each call is generated anew after Resume. A call of
// which the agent has read pieces fails for the agent instead, which then sends
// it again.
func (t *Trainer) Abort(s Selection) int { return t.holds.abort(&s) }

// Next returns the next model call that waits for an answer and is not held.
func (t *Trainer) Next(ctx context.Context) (*Pending, error) { return t.handout.next(ctx) }

// Serve answers all calls with f until the context ends, Config.Parallel of them
// at once.
func (t *Trainer) Serve(ctx context.Context, f Answerer) error { return t.handout.serve(ctx, f) }

// Refusals returns the number of answers that workers refused.
func (t *Trainer) Refusals() int64 { return t.refusals.count.Load() }

// Watch calls handle, one event at a time, with the phases and waits of this
// trainer's rollouts until stop is called. They include rollouts that no worker
// has taken. Events may be lost.
func (t *Trainer) Watch(handle func(schema.Event)) (stop func(), err error) {
	return newWatcher(t.backlog, t.blockers, handle).start()
}

// Fleet lists the live workers, with the offer and the used slots of each.
func (t *Trainer) Fleet(ctx context.Context) (schema.Fleet, error) { return t.base.requests.Fleet(ctx) }

// PutBundle stores a task's files for workers, and returns the sha256 for
// schema.Task.Bundle. The process keeps up to a GiB of bundles, and stores a
// bundle again with a rollout that the broker lost. While NATS cannot be
// reached it waits until the context ends.
func (t *Trainer) PutBundle(ctx context.Context, data []byte) (string, error) {
	return t.bundles.put(ctx, data)
}

// Artifact reads a file of a rollout. While NATS cannot be reached it waits
// until the context ends.
func (t *Trainer) Artifact(ctx context.Context, a schema.Artifact) ([]byte, error) {
	return t.base.requests.Artifact(ctx, a.SHA256)
}

// CopyArtifact is Artifact, but writes the file to a writer. After an error the writer may
// have a part of the file, or a file with another sha256.
func (t *Trainer) CopyArtifact(ctx context.Context, a schema.Artifact, to io.Writer) error {
	return t.base.requests.CopyArtifact(ctx, a.SHA256, to)
}
