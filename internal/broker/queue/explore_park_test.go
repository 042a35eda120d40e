package queue

// moveStep is a step of a resolution that moves a message. Workers that park do the first
// four in this order, the janitor that moves a message of a full trainer the others.
type moveStep uint8

const (
	decides moveStep = iota
	makeClass
	storeParked
	ensureClass
	ackOriginal
	moveOver
	keepCopy
	deleteOld
	publishNew
)

// orderly is the order of these steps.
func orderly() map[moveStep]moveStep {
	return map[moveStep]moveStep{
		decides: makeClass, makeClass: storeParked, storeParked: ensureClass, ensureClass: ackOriginal, ackOriginal: moveOver,
		keepCopy: deleteOld, deleteOld: publishNew, publishNew: moveOver,
	}
}

// deliver lets a worker without a resolution get a message, as setAside decides about
// it.
func (e *explorer) deliver(i int, m uint8) {
	w := e.now
	x := &w.workers[i]
	x.take = thread{busy: true, known: true, why: askRun, message: m, rec: w.state}
	if !w.parks {
		e.to(w, false)
		return
	}
	first, in := !w.seen.has(m), placeOf(m)
	late := w.late && first && (in == inDelay || w.state.seq == 0)
	w.seen |= only(m)
	switch {
	case w.full && m != moved, !w.made.has(in), in == inNeeds && x.unfit: // this worker does not pull there
		return
	case late && (in == inDelay || w.full): // it comes again after the delay
		x.take = thread{}
	case late && in == onLane:
		x.take = e.parking(x, m, inDelay)
	case x.unfit && w.full: // it cannot be parked
		return
	case x.unfit && first:
		x.take = e.parking(x, m, inNeeds)
	case x.unfit:
		x.take.why, x.take.to = askPark, inNeeds
	}
	e.to(w, false)
}

// parking is the thread of a worker that has decided to park a message.
func (e *explorer) parking(x *worker, m uint8, to place) thread {
	th := thread{busy: true, known: true, why: askPark, message: m, rec: kept{owner: -1}, to: to, moveStep: e.order[decides]}
	if th.moveStep == makeClass && x.knows.has(to) {
		th.moveStep = e.order[makeClass]
	}
	return th
}

// move carries out a moveStep of a resolution that moves a message.
func (e *explorer) move(i int, of func(*world) *thread) {
	w := e.now
	th := of(&w)
	lost := func() { // the answer is lost, and the message comes again
		if w.losses > 0 {
			up := w
			up.losses--
			*of(&up) = thread{}
			e.to(up, true)
		}
	}
	switch at := th.moveStep; at {
	case makeClass, ensureClass:
		lost()
		w.made |= 1 << th.to
		w.workers[i].knows |= 1 << th.to
		th.moveStep = e.order[at]
	case storeParked:
		if w.queue&th.to.copies() == 0 {
			m, ok := w.unused(th.to.copies())
			if !ok {
				e.fail(w, "a class has too few sequences in this test")
			}
			w.publish(m)
		}
		th.moveStep = e.order[at]
		lost()
	case ackOriginal:
		lost()
		w.queue &^= only(th.message)
		th.moveStep = e.order[at]
	case keepCopy:
		there := w.queue&(only(th.rec.message)|only(remade)|parkedMessages) != 0
		w.copied = w.copied || there
		th.moveStep = e.order[at]
	case deleteOld:
		w.queue &^= only(th.rec.message)&^only(moved) | only(remade) | parkedMessages
		th.moveStep = e.order[at]
	case publishNew:
		if w.copied {
			w.remake()
		}
		th.moveStep = e.order[at]
	}
	if th := of(&w); th.moveStep == moveOver {
		*th = thread{}
	}
	e.to(w, false)
}

// refuse lets the janitor end requests that no live worker can run.
func (e *explorer) refuse() {
	for i := range e.now.workers {
		if x := &e.now.workers[i]; !x.dead && !x.stalled && !x.unfit {
			return
		}
	}
	if !e.now.parks {
		return
	}
	for m := range e.now.queue.all() {
		if in := placeOf(m); m == moved || in == inNeeds && e.now.made.has(in) {
			w := e.now
			w.third = thread{busy: true, known: true, why: askRefuse, message: m, rec: w.state}
			e.to(w, false)
		}
	}
}

// circumstances are the faults and changes that concern parked requests and full
// trainers.
func (e *explorer) circumstances() {
	if w := e.now; w.turns > 0 {
		w.turns--
		w.workers[0].unfit, w.workers[1].unfit = w.workers[1].unfit, w.workers[0].unfit
		e.to(w, true)
	}
	if w := e.now; w.recounts > 0 && w.seen != 0 { // the consumers are made again
		w.recounts--
		w.seen = 0
		e.to(w, true)
	}
	if w := e.now; w.fills > 0 && !w.full {
		w.fills--
		w.full = true
		e.to(w, true)
	}
	if w := e.now; w.full && (w.state.seq == 0 || w.state.terminal()) { // the records of ended rollouts are purged
		w.full = false
		e.to(w, false)
	}
	if w := e.now; w.heirs > 0 && w.third.busy { // another worker becomes the janitor
		w.heirs--
		w.third = thread{}
		e.to(w, true)
	}
	for m := range (e.now.queue & parkedMessages).all() { // the janitor looks for classes without a consumer
		if w := e.now; !e.unserved && !w.made.has(placeOf(m)) {
			w.made |= 1 << placeOf(m)
			e.to(w, false)
		}
	}
	for i := range e.now.workers { // a worker reads the list of classes
		if w := e.now; !w.workers[i].dead && w.workers[i].knows != w.made {
			w.workers[i].knows = w.made
			e.to(w, false)
		}
	}
}

// publish stores a message.
func (w *world) publish(m uint8) {
	w.queue |= only(m)
	w.seen &^= only(m)
}

// remake publishes the copy of the request.
func (w *world) remake() {
	if w.full {
		w.publish(moved)
	} else {
		w.publish(remade)
	}
}

// wiped is the world after the loss of the trainer's queue with its classes. A
// worker that parks a lost message acknowledges none.
func (w world) wiped() world {
	w.wipes--
	w.queue &= only(moved)
	if w.parks {
		w.made = 0
		for i := range w.workers {
			if th := &w.workers[i].take; th.moveStep != 0 {
				th.message = 0
			}
		}
	} else {
		w.queue = 0
	}
	return w
}

// unused returns the first of some sequences that no message has and no record or
// resolution names.
func (w *world) unused(of messages) (uint8, bool) {
	used := w.queue | only(w.state.message) | only(w.third.message) | only(w.third.rec.message)
	for i := range w.workers {
		x := &w.workers[i]
		used |= only(x.rec.message) | only(x.take.message) | only(x.take.rec.message) | only(x.end.rec.message)
	}
	for m := range (of &^ used).all() {
		return m, true
	}
	return 0, false
}
