package queue

import (
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// TestSmallWorlds explores every interleaving of two workers, two messages of one
// rollout and a few faults: it has exactly one result, attempts only grow, no
// fenced attempt stores a result, tries are bounded, no worker runs a request that it
// cannot run, a request that no worker has claimed is lost only with the queue, and
// from every world the rollout can end with an empty queue.
func TestSmallWorlds(t *testing.T) {
	worlds := map[string]world{
		"a crash and a lost answer":     {crashes: 1, losses: 1},
		"a lost queue and a crash":      {wipes: 1, crashes: 1, uncopied: 1},
		"a lost queue and a lost write": {wipes: 1, losses: 1},
		"a lapsed lease and a failure":  {stalls: 1, fails: 1},
		"a lapsed lease and a lost one": {stalls: 1, losses: 1},
		"a cancel and a crash":          {cancels: 1, crashes: 1},
		"a cancel and a lost answer":    {cancels: 1, losses: 1},
		"a drain and a crash":           {drains: 1, crashes: 1},

		"parked, and a crash":                    parkable(world{crashes: 1}),
		"parked, and a lost answer":              parkable(world{losses: 1}),
		"parked, and a lost queue":               parkable(world{wipes: 1}),
		"parked, and a cancel":                   parkable(world{cancels: 1}),
		"parked, and a lapsed lease":             parkable(world{stalls: 1, single: true}),
		"parked, a lost queue and a crash":       parkable(world{wipes: 1, crashes: 1, uncopied: 1, single: true}),
		"parked, a lost queue and a lost answer": parkable(world{wipes: 1, losses: 1, single: true}),
		"parked, a cancel and a crash":           parkable(world{cancels: 1, crashes: 1, single: true}),
		"parked, and the other becomes fit":      parkable(world{turns: 1, crashes: 1, single: true}),
		"parked, and a lost consumer":            parkable(world{recounts: 1, crashes: 1, single: true}),
		"delayed, and a crash":                   parkable(world{late: true, crashes: 1, single: true}),
		"delayed, and a lost queue":              parkable(world{late: true, wipes: 1, single: true}),
		"full, a drain and a crash":              parkable(world{fills: 1, drains: 1, crashes: 1, single: true}),
		"full, a crash, and the janitor dies":    parkable(world{fills: 1, crashes: 1, heirs: 1, single: true}),
		"full, and a cancel":                     parkable(world{fills: 1, cancels: 1, crashes: 1, single: true}),
		"full, and a lost queue":                 parkable(world{fills: 1, wipes: 1, crashes: 1, single: true}),
	}
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if wrong := explore(t, w, rules{}); wrong != "" {
				t.Error(wrong)
			}
		})
	}
}

// parkable is the world with a worker that cannot run the request.
func parkable(w world) world {
	w.parks, w.workers[1].unfit = true, true
	return w
}

// TestSmallWorldsCanFail breaks one rule at a time.
func TestSmallWorldsCanFail(t *testing.T) {
	t.Parallel()
	instead := func(of ask, from, to step) rules {
		return rules{broken: func(f facts, d decision) decision {
			if f.ask == of && d.step == from {
				d.step = to
			}
			return d
		}}
	}
	never := func(of ask) rules {
		return rules{broken: func(f facts, d decision) decision {
			if f.ask == of {
				d.step = stepNone
			}
			return d
		}}
	}
	for name, tt := range map[string]struct {
		world
		rules
	}{
		"a new owner does not look for a result": {world{crashes: 1}, instead(askRun, lookAtResult, stepBegin)},
		"tries are not counted": {world{crashes: 1}, rules{broken: func(_ facts, d decision) decision {
			if d.step == writeClaim {
				d.next.Tries += 2
			}
			return d
		}}},
		"no audit":   {world{wipes: 1, losses: 1}, never(askAudit)},
		"no janitor": {world{wipes: 1, crashes: 1}, never(askTidy)},
		"the original is acknowledged before the copy is stored": {parkable(world{single: true}), rules{order: map[moveStep]moveStep{
			decides: makeClass, makeClass: ackOriginal, ackOriginal: storeParked, storeParked: ensureClass, ensureClass: moveOver,
		}}},
		"a class gets no consumer": {parkable(world{}), rules{unserved: true, order: map[moveStep]moveStep{
			decides: storeParked, storeParked: ackOriginal, ackOriginal: moveOver,
		}}},
		"a lost consumer is not made again": {parkable(world{wipes: 1, crashes: 1, single: true}), rules{unserved: true}},
		"an unfit worker claims": {parkable(world{}), rules{broken: func(f facts, d decision) decision {
			if d.step == stepPark {
				return claim(broker.Record[schema.State]{}, f)
			}
			return d
		}}},
		"no worker ends a request that none can run": {parkable(world{crashes: 1}), instead(askRefuse, writeOutcome, stepLater)},
		"a full trainer keeps what has begun":        {parkable(world{fills: 1, crashes: 1, single: true}), instead(askTidy, stepFree, stepNone)},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := explore(t, tt.world, tt.rules)
			if wrong == "" {
				t.Fatal("nothing was seen")
			}
			first, _, _ := strings.Cut(string(wrong), "\n")
			t.Log(first)
		})
	}
}
