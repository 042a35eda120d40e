package queue

import (
	"fmt"
	"testing"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// explorer visits every world.
type explorer struct {
	t     *testing.T
	index map[world]int32
	todo  []world
	from  [][]int32 // predecessors by steps that are no faults
	at    int32
	now   world
	rules
}

// rules can differ from the rules in the code. A mutant breaks one.
type rules struct {
	broken   func(facts, decision) decision // nil: no rule of decide
	order    map[moveStep]moveStep          // of the steps that move a message; nil: orderly
	unserved bool                           // the janitor makes no missing consumer of a class
}

// violation is the panic of a world that must not be.
type violation string

func (e *explorer) fail(w world, format string, args ...any) {
	panic(violation(fmt.Sprintf(format+"\nfrom %+v\nto   %+v", append(args, e.now, w)...)))
}

// decide is the function under test, with a broken rule if there is one.
func (e *explorer) decide(r broker.Record[schema.State], f facts) decision {
	d := decide(r, f)
	if e.broken != nil {
		d = e.broken(f, d)
	}
	return d
}

// to adds an edge to w. A fault is a step that no progress may depend on.
func (e *explorer) to(w world, fault bool) {
	if w.state.terminal() && (w.result.attempt != w.state.attempt || w.result.status != w.state.status) {
		e.fail(w, "a terminal state without its result")
	}
	if e.now.state.terminal() && w.state != e.now.state {
		e.fail(w, "a terminal state changed")
	}
	if e.now.result != (answer{}) && w.result != e.now.result {
		e.fail(w, "a second result")
	}
	if w.state.tries > maxTries {
		e.fail(w, "too many tries")
	}
	if w.state.attempt < e.now.state.attempt && !w.state.terminal() {
		e.fail(w, "the attempt became less")
	}
	if w.result != e.now.result && w.result.attempt < e.now.state.attempt {
		e.fail(w, "a result of an attempt that was fenced")
	}
	if w.state.seq == 0 && w.result == (answer{}) && w.queue == 0 && e.now.queue != 0 && w.wipes == e.now.wipes {
		e.fail(w, "a request that no worker had claimed was lost")
	}
	w = w.plain()
	i, there := e.index[w]
	if !there {
		if len(e.todo) > 2_000_000 {
			e.t.Fatal("too many worlds")
		}
		i = int32(len(e.todo))
		e.index[w] = i
		e.todo, e.from = append(e.todo, w), append(e.from, nil)
	}
	if !fault {
		e.from[i] = append(e.from[i], e.at)
	}
}

// explore visits every world that can follow this one, and returns the first
// violation.
func explore(t *testing.T, start world, r rules) (wrong violation) {
	t.Helper()
	start.queue, start.state.owner = only(1), -1
	if !start.single {
		start.queue |= only(2)
	}
	if r.order == nil {
		r.order = orderly()
	}
	e := &explorer{t: t, index: map[world]int32{}, now: start, rules: r}
	defer func() {
		if v, ok := recover().(violation); ok {
			wrong = v
		}
	}()
	e.run(start)
	t.Logf("%d worlds", len(e.todo))
	return ""
}

func (e *explorer) run(start world) {
	e.to(start, true)
	for ; int(e.at) < len(e.todo); e.at++ {
		e.now = e.todo[e.at]
		e.expand()
	}
	good := make([]bool, len(e.todo))
	var back []int32
	for i, w := range e.todo {
		if w.state.terminal() && w.queue == 0 {
			good[i] = true
			back = append(back, int32(i))
		}
	}
	for len(back) > 0 {
		i := back[len(back)-1]
		back = back[:len(back)-1]
		for _, p := range e.from[i] {
			if !good[p] {
				good[p] = true
				back = append(back, p)
			}
		}
	}
	for i, ok := range good {
		if !ok {
			e.now = e.todo[i]
			e.fail(e.now, "stuck")
		}
	}
}

func (e *explorer) expand() {
	w := e.now
	if w.state.seq == 0 && w.result == (answer{}) && w.queue == 0 { // the trainer submits it again
		next := w
		next.publish(1)
		e.to(next, false)
	}
	if w.wipes > 0 {
		e.to(w.wiped(), true)
	}
	e.circumstances()
	for i := range w.workers {
		e.faults(i)
		if !w.workers[i].dead {
			e.worker(i)
		}
	}
	e.others()
}

func (e *explorer) faults(i int) {
	if w := e.now; w.crashes > 0 && !w.workers[i].dead {
		w.crashes--
		w.workers[i] = worker{dead: true}
		e.to(w, true)
	}
	if w := e.now; w.stalls > 0 && !w.workers[i].dead && !w.workers[i].stalled {
		w.stalls--
		w.workers[i].stalled = true
		e.to(w, true)
	}
}
