package queue

import "github.com/turngate/turngate/schema"

// worker lets a worker begin something or go on with it.
func (e *explorer) worker(i int) {
	x := &e.now.workers[i]
	if x.take.busy {
		e.step(i, func(w *world) *thread { return &w.workers[i].take })
	} else {
		for m := range e.now.queue.all() {
			e.deliver(i, m)
		}
	}
	if x.end.busy {
		e.step(i, func(w *world) *thread { return &w.workers[i].end })
	} else if x.job > 0 {
		for _, why := range []struct {
			ask
			spend bool
			left  *uint8
		}{{askCommit, false, nil}, {askReturn, true, &e.now.fails}, {askReturn, false, &e.now.drains}} {
			if why.left == nil || *why.left > 0 {
				w := e.now
				w.workers[i].end = thread{busy: true, known: true, why: why.ask, spend: why.spend, attempt: x.job, rec: x.rec}
				if why.left == &e.now.fails {
					w.fails--
				} else if why.left == &e.now.drains {
					w.drains--
				}
				e.to(w, why.left != nil)
			}
		}
	}
	if x.stalled { // it comes back and touches its state
		w := e.now
		w.workers[i].stalled = false
		if x.job > 0 && !x.end.busy {
			e.keep(&w, i)
		}
		e.to(w, false)
	}
	if w := e.now; w.state.owner == int8(i) && x.job == 0 && x.take.attempt == 0 {
		d := e.decide(w.state.record(), e.factsOf(&w, i, &thread{why: askAudit}))
		if d.writes() {
			e.write(&w, d, w.state.attempt)
			w.workers[i].ran = 0
			e.to(w, false)
		}
	}
}

// keep verifies the job of a worker, with a touch.
func (e *explorer) keep(w *world, i int) {
	x := &w.workers[i]
	th := thread{why: askOwned, attempt: x.job, moved: w.state.seq != x.rec.seq}
	switch d := e.decide(w.state.record(), e.factsOf(w, i, &th)); d.step {
	case writeTouch:
		w.state.seq++
		x.rec = w.state
	case stepFence:
		x.job, x.ran = 0, 0
	case stepContinue, stepStop:
		x.rec = w.state
	default:
		e.fail(*w, "the check of a job says %q", d.step)
	}
}

// others are the trainer and the third worker.
func (e *explorer) others() {
	if e.now.cancels > 0 {
		w := e.now
		w.cancels--
		w.cancel = true
		e.to(w, true)
	}
	if e.now.third.busy {
		e.step(thirdParty, func(w *world) *thread { return &w.third })
		return
	}
	for _, why := range []ask{askTidy, askCancel} {
		w := e.now
		th := &w.third
		*th = thread{busy: true, known: true, why: why, rec: w.state}
		if why == askCancel && !w.cancel {
			continue
		}
		for { // it reads in this step and writes in a later one
			d := e.decide(th.rec.record(), e.factsOf(&w, thirdParty, th))
			if e.look(&w, th, d.step) {
				continue
			}
			if d.writes() || d.step == stepRemake || d.step == stepFree {
				e.to(w, false)
			}
			break
		}
	}
	e.refuse()
}

func (e *explorer) factsOf(w *world, i int, th *thread) facts {
	f := facts{
		ask: th.why, worker: name(i), instance: "i", attempt: int(th.attempt), copied: th.copied, message: uint64(th.message), maxAttempts: maxTries,
		lease: th.lease, watched: th.watched, stored: th.stored, moved: th.moved, spend: th.spend, listed: true, lost: true, queue: th.queue,
		touch:  th.why == askOwned,
		result: &schema.Result{Status: statuses[w.result.status], Attempt: int(w.result.attempt)},
	}
	if i < thirdParty {
		x := &w.workers[i]
		f.job = x.job > 0 && (th.why == askRun || th.why == askPark)
		f.ran = x.ran > 0 && x.ran == th.rec.attempt || th.why == askAudit && x.ran > 0 && x.ran == w.state.attempt
	}
	return f
}

// write stores a state, and the result that goes with it.
func (e *explorer) write(w *world, d decision, attempt uint8) {
	if d.step == writeOutcome {
		if w.result != (answer{}) {
			e.fail(*w, "a batch was stored beside a result")
		}
		d.next.Status = d.status
		w.result = answer{number(d.status), attempt}
	}
	w.state = w.state.with(d.next, w.state.seq+1)
}

// step lets a thread read, decide or write once.
func (e *explorer) step(i int, of func(*world) *thread) {
	w := e.now
	th := of(&w)
	if th.moveStep != 0 {
		e.move(i, of)
		return
	}
	if !th.known {
		if before := th.rec.seq; w.state.seq != before {
			th.lease, th.stored, th.watched, th.queue = leaseUnknown, resultUnknown, false, queueUnknown
		}
		th.rec, th.known = w.state, true
		e.to(w, false)
		return
	}
	d := e.decide(th.rec.record(), e.factsOf(&w, i, th))
	if !e.look(&w, th, d.step) {
		if d.writes() {
			e.attempt(i, of, d)
			return
		}
		e.last(&w, i, th, d)
	}
	e.to(w, false)
}

// look gets a fact for a thread, and reports whether the step asks for one.
func (e *explorer) look(w *world, th *thread, s step) bool {
	switch s {
	case lookAtLease:
		th.lease = w.lease(th.rec.owner)
	case lookAtResult:
		if th.stored = resultNone; w.result != (answer{}) {
			th.stored = resultStored
		}
	case lookAtQueue:
		kept := w.queue.has(th.rec.message) || w.queue&(only(remade)|parkedMessages) != 0
		switch {
		case w.queue.has(moved), kept && !w.full:
			th.queue = queueHas
		case kept:
			th.queue = queueFull
		case w.copied:
			th.queue = queueLost
		default:
			th.queue = queueNowhere
		}
	case storeCopy:
		w.copied, th.copied = true, true
	case stepWatch:
		th.watched = w.state.seq == th.rec.seq && w.lease(th.rec.owner) == leaseAbsent
		if !th.watched {
			th.known, th.lease = false, leaseUnknown
		}
	default:
		return false
	}
	return true
}

// attempt carries out the write of a decision. The write or its answer may be lost.
func (e *explorer) attempt(i int, of func(*world) *thread, d decision) {
	w := e.now
	th := of(&w)
	again := func(w world, fault bool) {
		th := of(&w)
		th.known, th.moved, th.between, th.lease, th.stored = false, true, false, leaseUnknown, resultUnknown
		th.watched = th.watched && !fault
		e.to(w, fault)
	}
	if d.step == writeClaim {
		th.attempt = uint8(d.next.Attempt)
		if th.why != askRun {
			e.fail(w, "a worker claims a request that it cannot run")
		}
	}
	if e.now.losses > 0 { // the write is lost
		lost := w
		lost.losses--
		again(lost, true)
	}
	if w.state.seq != th.rec.seq || d.step == writeOutcome && w.result != (answer{}) {
		again(w, false)
		return
	}
	if d.step == writeCommit && !th.between { // the result, then the state
		status := number(schema.StatusDone)
		if d.status != "" {
			status = number(d.status)
		}
		w.result = answer{status, th.rec.attempt}
		th.between = true
		if w.losses > 0 {
			lost := w
			lost.losses--
			again(lost, true)
		}
		e.to(w, false)
		return
	}
	if d.step == writeCommit {
		d.next.Status = statuses[w.result.status]
	}
	if d.step == writeClaim {
		if w.uncopied > 0 {
			bare := w
			bare.uncopied--
			e.write(&bare, d, th.rec.attempt)
			of(&bare).rec = bare.state
			e.to(bare, true)
		}
		w.copied, th.copied = true, true
	}
	e.write(&w, d, th.rec.attempt)
	if w.losses > 0 { // the answer is lost; the thread asks again, or gives up
		lost := w
		lost.losses--
		again(lost, true)
		up := lost
		*of(&up) = thread{}
		if th.why == askCommit || th.why == askReturn {
			up.workers[i].job = 0
		}
		e.to(up, true)
	}
	th.rec, th.stored = w.state, resultUnknown
	if d.step == writeClaim || d.step == writeBack && (th.why == askRun || th.why == askPark) {
		e.to(w, false)
		return
	}
	e.last(&w, i, th, d)
	e.to(w, false)
}

// last carries out the last step of a resolution.
func (e *explorer) last(w *world, i int, th *thread, d decision) {
	done := *th
	*th = thread{}
	switch {
	case d.step == stepBegin:
		x := &w.workers[i]
		x.job, x.ran, x.rec = done.rec.attempt, done.rec.attempt, done.rec
		return
	case d.step == stepRemake:
		w.remake()
		return
	case d.step == stepFree:
		*th = thread{busy: true, known: true, rec: done.rec, moveStep: keepCopy}
		return
	case d.step == stepPark:
		*th = e.parking(&w.workers[i], done.message, done.to)
		return
	case done.why == askCommit || done.why == askReturn:
		x := &w.workers[i]
		x.job, x.ran = 0, 0
		if w.state.terminal() {
			w.queue &^= only(done.rec.message)
		}
		return
	}
	if (done.why == askRun || done.why == askPark || done.why == askRefuse) && d.step != stepAdopt && d.step != stepLater {
		if d.step == stepDrop || w.state.terminal() {
			w.queue &^= only(done.message)
		}
	}
}
