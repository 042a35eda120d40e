package queue

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// decisions has every row of the decision table in docs/protocol.md.
func decisions() []struct {
	row   string // in the table of the documentation
	given broker.Record[schema.State]
	facts facts
	want  step
	next  schema.State
	ends  schema.Status // of the result, for steps that end the rollout
} {
	const me, other = "w1", "w2"
	absent := broker.Record[schema.State]{}
	state := func(status schema.Status, worker string, attempt, tries int) broker.Record[schema.State] {
		s := schema.State{Status: status, Attempt: attempt, Tries: tries}
		if status != schema.StatusQueued {
			s.Worker, s.Instance, s.OwnerSeq = worker, "i", 7
		}
		return broker.Record[schema.State]{Value: s, Seq: 40}
	}
	running, cancelling, queued, done := schema.StatusRunning, schema.StatusCancelling, schema.StatusQueued, schema.StatusDone
	dead, failed, cancelled := schema.StatusDead, schema.StatusFailed, schema.StatusCancelled
	run := func(f facts) facts {
		f.ask, f.maxAttempts, f.ack, f.now = askRun, 3, "ack", 99
		if f.message == 0 {
			f.message = 7
		}
		return f
	}
	claimed := func(attempt, tries int) schema.State {
		return schema.State{Status: running, Attempt: attempt, Tries: tries, Worker: me, Instance: "i", OwnerSeq: 7, Ack: "ack", Since: 99}
	}
	back := func(attempt, tries int) schema.State {
		return schema.State{Status: queued, Attempt: attempt, Tries: tries, OwnerSeq: 7}
	}
	mark := state(cancelling, other, 2, 1).Value
	of := func(why ask, f facts) facts { f.ask, f.maxAttempts = why, 3; return f }
	stored := &schema.Result{Status: done, Attempt: 1}
	finished := state(done, me, 1, 2).Value
	return []struct {
		row   string
		given broker.Record[schema.State]
		facts facts
		want  step
		next  schema.State
		ends  schema.Status
	}{
		{"message: absent", absent, run(facts{}), writeClaim, claimed(1, 1), ""},
		{"message: absent", absent, run(facts{floor: 4}), writeClaim, claimed(5, 1), ""},
		{"message: queued", state(queued, "", 2, 1), run(facts{}), writeClaim, claimed(3, 2), ""},
		{"message: queued, another slot claims it", state(queued, "", 2, 1), run(facts{job: true}), stepLater, schema.State{}, ""},
		{"message: queued, no tries left", state(queued, "", 3, 3), run(facts{}), writeOutcome, schema.State{}, dead},
		{"message: terminal", state(done, other, 1, 1), run(facts{}), stepEnded, schema.State{}, ""},
		{"message: mine by this claim", state(running, me, 1, 1), run(facts{attempt: 1, copied: true}), stepBegin, schema.State{}, ""},
		{"message: mine by this claim, without a copy", state(running, me, 1, 1), run(facts{attempt: 1}), storeCopy, schema.State{}, ""},
		{"message: mine by this claim, an earlier attempt", state(running, me, 2, 2), run(facts{attempt: 2, copied: true}), lookAtResult, schema.State{}, ""},
		{"message: mine by this claim, an earlier attempt", state(running, me, 2, 2), run(facts{attempt: 2, copied: true, stored: resultNone}), stepBegin, schema.State{}, ""},
		{"message: mine by this claim, an earlier attempt has a result", state(running, me, 2, 2), run(facts{attempt: 2, stored: resultStored, result: stored}), writeFinish, finished, ""},
		{"message: mine, with a job here", state(running, me, 1, 1), run(facts{job: true}), stepAdopt, schema.State{}, ""},
		{"message: mine, with a job here, a duplicate", state(running, me, 1, 1), run(facts{job: true, message: 8}), stepDrop, schema.State{}, ""},
		{"message: mine, without a job, nothing ran", state(running, me, 2, 2), run(facts{}), writeBack, back(2, 1), ""},
		{"message: mine, without a job, it ran", state(running, me, 2, 2), run(facts{ran: true}), writeBack, back(2, 2), ""},
		{"message: mine, without a job, cancelling", state(cancelling, me, 2, 2), run(facts{}), writeOutcome, schema.State{}, cancelled},
		{"message: another's", state(running, other, 1, 1), run(facts{}), lookAtLease, schema.State{}, ""},
		{"message: another's, lease alive", state(running, other, 1, 1), run(facts{lease: leaseAlive}), stepLater, schema.State{}, ""},
		{"message: another's, lease alive, a duplicate", state(running, other, 1, 1), run(facts{lease: leaseAlive, message: 8}), stepDrop, schema.State{}, ""},
		{"message: another's, lease absent", state(running, other, 1, 1), run(facts{lease: leaseAbsent}), stepWatch, schema.State{}, ""},
		{"message: another's, lease absent for long", state(running, other, 1, 1), run(facts{lease: leaseAbsent, watched: true}), writeClaim, claimed(2, 2), ""},
		{"message: another's, lease ended", state(running, other, 1, 1), run(facts{lease: leaseEnded}), writeClaim, claimed(2, 2), ""},
		{"message: another's, no tries left", state(running, other, 3, 3), run(facts{lease: leaseEnded}), writeOutcome, schema.State{}, dead},
		{"message: another's, cancelling, no lease", state(cancelling, other, 1, 1), run(facts{lease: leaseAbsent}), writeOutcome, schema.State{}, cancelled},

		{"parking: absent or queued", absent, of(askPark, facts{message: 7}), stepPark, schema.State{}, ""},
		{"parking: absent or queued", state(queued, "", 1, 1), of(askPark, facts{message: 7}), stepPark, schema.State{}, ""},
		{"parking: terminal", state(done, other, 1, 1), of(askPark, facts{message: 7}), stepEnded, schema.State{}, ""},
		{"parking: mine, with a job here", state(running, me, 1, 1), of(askPark, facts{message: 7, job: true}), stepAdopt, schema.State{}, ""},
		{"parking: mine, with a job here, a duplicate", state(running, me, 1, 1), of(askPark, facts{message: 8, job: true}), stepDrop, schema.State{}, ""},
		{"parking: mine, without a job", state(running, me, 2, 2), of(askPark, facts{message: 7}), writeBack, back(2, 1), ""},
		{"parking: another's", state(running, other, 1, 1), of(askPark, facts{message: 7}), lookAtLease, schema.State{}, ""},
		{"parking: another's, lease alive", state(running, other, 1, 1), of(askPark, facts{message: 7, lease: leaseAlive}), stepLater, schema.State{}, ""},
		{"parking: another's, lease alive, a duplicate", state(running, other, 1, 1), of(askPark, facts{message: 8, lease: leaseAlive}), stepDrop, schema.State{}, ""},
		{"parking: another's, lease gone", state(running, other, 1, 1), of(askPark, facts{message: 7, lease: leaseAbsent}), stepPark, schema.State{}, ""},
		{"parking: another's, lease gone", state(cancelling, other, 1, 1), of(askPark, facts{message: 7, lease: leaseEnded}), stepPark, schema.State{}, ""},

		{"no worker can: absent or queued", absent, of(askRefuse, facts{}), writeOutcome, schema.State{}, failed},
		{"no worker can: absent or queued", state(queued, "", 1, 1), of(askRefuse, facts{}), writeOutcome, schema.State{}, failed},
		{"no worker can: terminal", state(done, other, 1, 1), of(askRefuse, facts{}), stepEnded, schema.State{}, ""},
		{"no worker can: owned, lease alive", state(running, other, 1, 1), of(askRefuse, facts{lease: leaseAlive, message: 7}), stepLater, schema.State{}, ""},
		{"no worker can: owned, lease gone", state(running, other, 1, 1), of(askRefuse, facts{lease: leaseEnded, message: 7}), writeOutcome, schema.State{}, failed},
		{"no worker can: owned, cancelling, lease gone", state(cancelling, other, 1, 1), of(askRefuse, facts{lease: leaseAbsent, message: 7}), writeOutcome, schema.State{}, cancelled},
		{"invalid: absent or queued", absent, of(askReject, facts{}), writeOutcome, schema.State{}, failed},
		{"invalid: owned or terminal", state(running, other, 1, 1), of(askReject, facts{}), stepDrop, schema.State{}, ""},

		{"commit: mine", state(running, me, 1, 1), of(askCommit, facts{attempt: 1}), writeCommit, state(running, me, 1, 1).Value, ""},
		{"commit: mine, cancelling", state(cancelling, me, 1, 1), of(askCommit, facts{attempt: 1}), writeCommit, state(cancelling, me, 1, 1).Value, cancelled},
		{"commit: refused", state(cancelling, me, 1, 1), of(askCommit, facts{attempt: 1, moved: true}), lookAtResult, schema.State{}, ""},
		{"commit: refused, a result is stored", state(cancelling, me, 2, 2), of(askCommit, facts{attempt: 2, moved: true, stored: resultStored, result: stored}), writeFinish, finished, ""},
		{"commit: mine, terminal", state(done, me, 1, 1), of(askCommit, facts{attempt: 1, moved: true}), stepEnded, schema.State{}, ""},
		{"commit: another's", state(running, other, 2, 2), of(askCommit, facts{attempt: 1, moved: true}), stepFence, schema.State{}, ""},
		{"commit: another's", state(running, me, 2, 2), of(askCommit, facts{attempt: 1, moved: true}), stepFence, schema.State{}, ""},
		{"commit: absent", absent, of(askCommit, facts{attempt: 1, moved: true}), stepFence, schema.State{}, ""},

		{"put back: drained", state(running, me, 2, 2), of(askReturn, facts{attempt: 2}), writeBack, back(2, 1), ""},
		{"put back: failed", state(running, me, 2, 2), of(askReturn, facts{attempt: 2, spend: true}), writeBack, back(2, 2), ""},
		{"put back: failed, no tries left", state(running, me, 3, 3), of(askReturn, facts{attempt: 3, spend: true}), writeCommit, state(running, me, 3, 3).Value, dead},
		{"put back: cancelling", state(cancelling, me, 2, 2), of(askReturn, facts{attempt: 2, moved: true, stored: resultNone}), writeCommit, state(cancelling, me, 2, 2).Value, cancelled},
		{"put back: it is", state(queued, "", 2, 1), of(askReturn, facts{attempt: 2, moved: true}), stepContinue, schema.State{}, ""},
		{"put back: another's", state(running, other, 3, 3), of(askReturn, facts{attempt: 2, moved: true}), stepFence, schema.State{}, ""},

		{"after a lapse: mine", state(running, me, 1, 1), of(askOwned, facts{attempt: 1, touch: true}), writeTouch, state(running, me, 1, 1).Value, ""},
		{"after a lapse: mine, moved", state(running, me, 1, 1), of(askOwned, facts{attempt: 1, touch: true, moved: true}), stepContinue, schema.State{}, ""},
		{"after a lapse: cancelling", state(cancelling, me, 1, 1), of(askOwned, facts{attempt: 1}), stepStop, schema.State{}, ""},
		{"after a lapse: another's or terminal", state(running, other, 2, 2), of(askOwned, facts{attempt: 1}), stepFence, schema.State{}, ""},
		{"after a lapse: another's or terminal", state(done, me, 1, 1), of(askOwned, facts{attempt: 1}), stepFence, schema.State{}, ""},

		{"cancel: absent or queued", absent, of(askCancel, facts{}), writeOutcome, schema.State{}, cancelled},
		{"cancel: absent or queued", state(queued, "", 1, 1), of(askCancel, facts{}), writeOutcome, schema.State{}, cancelled},
		{"cancel: absent or queued, refused", state(queued, "", 1, 1), of(askCancel, facts{moved: true}), lookAtResult, schema.State{}, ""},
		{"cancel: a result is stored", state(queued, "", 1, 2), of(askCancel, facts{moved: true, stored: resultStored, result: stored}), writeFinish, schema.State{Status: done, Attempt: 1, Tries: 2}, ""},
		{"cancel: running", state(running, other, 2, 1), of(askCancel, facts{}), writeMark, mark, ""},
		{"cancel: cancelling", state(cancelling, other, 2, 1), of(askCancel, facts{}), lookAtLease, schema.State{}, ""},
		{"cancel: cancelling, lease alive", state(cancelling, other, 2, 1), of(askCancel, facts{lease: leaseAlive}), stepForwardCancel, schema.State{}, ""},
		{"cancel: cancelling, no lease", state(cancelling, other, 2, 1), of(askCancel, facts{lease: leaseAbsent}), writeOutcome, schema.State{}, cancelled},
		{"cancel: cancelling, mine without a job", state(cancelling, me, 2, 1), of(askCancel, facts{}), writeOutcome, schema.State{}, cancelled},
		{"cancel: terminal", state(done, other, 2, 1), of(askCancel, facts{}), stepEnded, schema.State{}, ""},

		{"audit: mine without a job, nothing ran", state(running, me, 2, 2), of(askAudit, facts{}), writeBack, back(2, 1), ""},
		{"audit: mine without a job, it ran", state(running, me, 2, 2), of(askAudit, facts{ran: true}), writeBack, back(2, 2), ""},
		{"audit: anything else", state(running, me, 2, 2), of(askAudit, facts{job: true}), stepNone, schema.State{}, ""},
		{"audit: anything else", state(running, other, 2, 2), of(askAudit, facts{}), stepNone, schema.State{}, ""},

		{"janitor: owned, lease alive", state(running, other, 1, 1), of(askTidy, facts{lease: leaseAlive, listed: true}), stepNone, schema.State{}, ""},
		{"janitor: owned, lease alive, not listed", state(running, other, 1, 1), of(askTidy, facts{lease: leaseAlive}), stepAudit, schema.State{}, ""},
		{"janitor: cancelling, no lease", state(cancelling, other, 1, 1), of(askTidy, facts{lease: leaseAbsent, listed: true}), writeOutcome, schema.State{}, cancelled},
		{"janitor: no worker has it, not for long", state(running, other, 1, 1), of(askTidy, facts{lease: leaseAbsent, listed: true}), stepNone, schema.State{}, ""},
		{"janitor: no worker has it", state(queued, "", 1, 1), of(askTidy, facts{lost: true, listed: true}), lookAtQueue, schema.State{}, ""},
		{"janitor: no worker has it, the queue does", state(queued, "", 1, 1), of(askTidy, facts{lost: true, queue: queueHas}), stepNone, schema.State{}, ""},
		{"janitor: no worker has it, the queue of a full trainer does", state(queued, "", 1, 1), of(askTidy, facts{lost: true, queue: queueFull}), stepFree, schema.State{}, ""},
		{"janitor: no worker has it, nor the queue", state(running, other, 1, 1), of(askTidy, facts{lease: leaseAbsent, lost: true, queue: queueLost}), stepRemake, schema.State{}, ""},
		{"janitor: neither message nor copy", state(running, other, 1, 1), of(askTidy, facts{lease: leaseAbsent, lost: true, queue: queueNowhere}), writeOutcome, schema.State{}, failed},
	}
}

func TestEveryRowOfTheDecisionTable(t *testing.T) {
	t.Parallel()
	for _, tt := range decisions() {
		f := tt.facts
		f.worker, f.instance, f.listed = "w1", "i", tt.facts.listed
		got := decide(tt.given, f)
		got.next.Fault = nil
		if got.step != tt.want || got.status != tt.ends || tt.next.Status != "" && fmt.Sprint(got.next) != fmt.Sprint(tt.next) {
			t.Errorf("%s:\n got %q, result %q, %+v\nwant %q, result %q, %+v", tt.row, got.step, got.status, got.next, tt.want, tt.ends, tt.next)
		}
	}
}

// TestTheDocumentedTableIsTheDecision compares the rows of the documentation with
// the rows of TestEveryRowOfTheDecisionTable.
func TestTheDocumentedTableIsTheDecision(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([a-z ]+: [^|]+?) \| ([^|]+?) \|$`).FindAllStringSubmatch(string(data), -1) {
		documented[m[1]] = m[2]
	}
	checked := map[string]string{}
	for _, tt := range decisions() {
		said := string(tt.want)
		if tt.ends != "" {
			said += " (" + string(tt.ends) + ")"
		}
		if was := checked[tt.row]; was != "" && was != said {
			said = was + "; " + said
		}
		checked[tt.row] = said
	}
	for row, said := range checked {
		if documented[row] != said {
			t.Errorf("%q: the decision is %q, documented is %q", row, said, documented[row])
		}
	}
	for row := range documented {
		if checked[row] == "" {
			t.Errorf("%q is documented and not checked", row)
		}
	}
	if t.Failed() && os.Getenv("PRINT_TABLE") != "" {
		var b strings.Builder
		last := ""
		for _, tt := range decisions() {
			if tt.row != last {
				fmt.Fprintf(&b, "| %s | %s |\n", tt.row, checked[tt.row])
				last = tt.row
			}
		}
		t.Log("\n" + b.String())
	}
}
