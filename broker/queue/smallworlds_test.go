package queue

import (
	"strings"
	"testing"
)

// TestSmallWorlds explores every interleaving of two workers, two messages of one
// rollout and a few faults: it has exactly one result, attempts only grow, no
// fenced attempt stores a result, tries are bounded, and from every world the
// rollout can end with an empty queue.
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

		"parked":                           parkable(world{}),
		"parked, and a crash":              parkable(world{crashes: 1}),
		"parked, and a lost answer":        parkable(world{losses: 1}),
		"parked, and a lost queue":         parkable(world{wipes: 1}),
		"parked, and a cancel":             parkable(world{cancels: 1}),
		"parked, a lost queue and a crash": parkable(world{wipes: 1, crashes: 1, single: true}),
		"delayed, and a crash":             parkable(world{late: true, crashes: 1, single: true}),
		"full, and a crash":                parkable(world{fills: 1, crashes: 1, single: true}),
	}
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if wrong := explore(t, w, nil, orderly()); wrong != "" {
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
	for name, tt := range map[string]struct {
		world
		broken func(facts, decision) decision
	}{
		"a new owner does not look for a result": {world{crashes: 1}, func(f facts, d decision) decision {
			if f.ask == askRun && d.step == lookAtResult {
				d.step = stepBegin
			}
			return d
		}},
		"tries are not counted": {world{crashes: 1}, func(f facts, d decision) decision {
			if d.step == writeClaim {
				d.next.Tries += 2
			}
			return d
		}},
		"no audit": {world{wipes: 1, losses: 1}, func(f facts, d decision) decision {
			if f.ask == askAudit {
				d.step = stepNone
			}
			return d
		}},
		"no janitor": {world{wipes: 1, crashes: 1}, func(f facts, d decision) decision {
			if f.ask == askTidy {
				d.step = stepNone
			}
			return d
		}},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := explore(t, tt.world, tt.broken, orderly())
			if wrong == "" {
				t.Fatal("nothing was seen")
			}
			first, _, _ := strings.Cut(string(wrong), "\n")
			t.Log(first)
		})
	}
}
