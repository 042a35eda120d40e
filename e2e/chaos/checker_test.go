package chaos_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/schema"
)

// report has the findings from the histories of a run.
type report struct {
	violations map[string][]string // by invariant
	rollouts   int
	trained    map[string]int // results that each trainer has handed out
	takeovers  int
	dead       int // rollouts that used their tries up
	executions int // agents that began
	overlaps   int // simultaneous executions of one rollout
	fenced     int // attempts with a worker that knew of a later attempt
	messages   int // messages of which the tap got a copy
	reassigned []time.Duration
}

func (r *report) violate(invariant, format string, args ...any) {
	if r.violations == nil {
		r.violations = map[string][]string{}
	}
	r.violations[invariant] = append(r.violations[invariant], fmt.Sprintf(format, args...))
}

func lines[T any](path string) ([]T, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []T
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", path, err, line)
		}
		out = append(out, v)
	}
}

// check compares the run's observations with the invariants. It observes every
// stored version of the records, the results that the trainers handed out, the
// generations that they made and the agents read, and the messages on the wire.
func check(b *bench, p *tap, f *injector) (*report, error) {
	r := &report{}
	made, named := map[string]generation{}, map[string]schema.Key{}
	for _, t := range b.trainers {
		trained, err := lines[history.Trained](filepath.Join(b.dir, "trainer-"+t.name+".jsonl"))
		if err != nil {
			return nil, err
		}
		versions, err := p.versions(t.name)
		if err != nil {
			return nil, err
		}
		limits := map[schema.ID]int{}
		for _, l := range trained {
			switch l.Op {
			case "submit":
				limits[l.ID] = l.Max
			case "generate":
				key, err := schema.ParseKey(l.Key)
				if err != nil {
					return nil, err
				}
				made[l.Gen], named[l.Name] = generation{key, l.Text}, key
			}
		}
		r.rollouts += len(limits)
		for id, most := range limits {
			r.checkRecords(id, versions[id], most)
			if b.steady && len(versions[id]) > 0 {
				if last := versions[id][len(versions[id])-1].state; last != nil && last.Attempt > 1 {
					r.violate("I4", "%s: it was run %d times, and no worker was stopped", id, last.Attempt)
				}
			}
		}
		for id := range versions {
			if _, ok := limits[id]; !ok {
				r.violate("I1", "%s has records and was never submitted", id)
			}
		}
		r.checkHandedOut(t.name, trained, limits, versions, f.killed(t))
		r.checkCommitted(trained, named)
	}
	read, err := lines[history.Read](filepath.Join(b.dir, "agents.jsonl"))
	if err != nil {
		return nil, err
	}
	r.checkGenerations(read, made)
	r.checkWire(p)
	r.measure(b, f.kills)
	return r, nil
}

// checkRecords checks I1, I2 and I4 with every version of a rollout's records.
func (r *report) checkRecords(id schema.ID, all []version, most int) {
	var now *schema.State // the version before
	var result *schema.Result
	results, ends := 0, 0
	returned := map[int]bool{}
	for _, v := range all {
		if v.result != nil {
			result = v.result
			results++
			if ends > 0 {
				r.violate("I1", "%s: a result was stored at %d, after its end", id, v.seq)
			}
			continue
		}
		s := v.state
		if why := illegal(now, s); why != "" {
			invariant := "I1"
			if s.Status == schema.StatusRunning || s.Status == schema.StatusQueued {
				invariant = "I4"
			}
			r.violate(invariant, "%s: the state at %d %s: %s", id, v.seq, why, difference(now, s))
		}
		if s.Tries > most {
			r.violate("I4", "%s: %d tries, at most %d", id, s.Tries, most)
		}
		if s.Status == schema.StatusQueued && now != nil && s.Tries < now.Tries {
			returned[s.Attempt] = true
		}
		if s.Status.Terminal() {
			ends++
		}
		now = s
	}
	switch {
	case now == nil || result == nil || !now.Status.Terminal():
		r.violate("I1", "%s has no end: state %+v, %d results", id, now, results)
		return
	case results != 1:
		r.violate("I1", "%s: %d results were stored", id, results)
	case now.Status != result.Status:
		r.violate("I1", "%s: state %s, result %s", id, now.Status, result.Status)
	}
	if now.Attempt != result.Attempt {
		r.violate("I2", "%s: the state's attempt is %d, the result's %d", id, now.Attempt, result.Attempt)
	}
	if now.Attempt-len(returned) > most {
		r.violate("I4", "%s: %d attempts of which %d were given back, at most %d tries", id, now.Attempt, len(returned), most)
	}
	if result.Status == schema.StatusDead {
		r.dead++
		if now.Tries < most {
			r.violate("I4", "%s is dead after %d of %d tries", id, now.Tries, most)
		}
	}
	r.takeovers += max(now.Attempt-1, 0)
}

// illegal returns why a change of a state is forbidden; empty: it is allowed.
func illegal(from, to *schema.State) string {
	if from == nil {
		from = &schema.State{Status: schema.StatusQueued}
	}
	switch {
	case from.Status.Terminal():
		return "follows an end"
	case to.Attempt > from.Attempt && to.Status != schema.StatusRunning:
		return "has a later attempt and no claim"
	case to.Attempt > from.Attempt && from.Status == schema.StatusCancelling:
		return "claims a rollout that is being cancelled"
	case to.Attempt > from.Attempt && to.Tries != from.Tries+1:
		return "claims and does not count the try"
	case to.Attempt < from.Attempt && !to.Status.Terminal():
		return "has an earlier attempt"
	case to.Attempt > from.Attempt || to.Status.Terminal():
		return ""
	case to.Status == schema.StatusQueued && from.Status == schema.StatusRunning && to.Tries == from.Tries && to.Fault != nil:
		return "gives an execution up, although sandboxes have no faults"
	case to.Status == schema.StatusQueued && from.Status == schema.StatusRunning && (to.Tries == from.Tries || to.Tries == from.Tries-1):
		return ""
	case to.Tries != from.Tries:
		return "has other tries"
	case to.Status == from.Status && to.Owned() && to.Worker == from.Worker && to.Instance == from.Instance:
		return "" // touched after a hold
	case to.Status == schema.StatusCancelling && from.Status == schema.StatusRunning:
		return ""
	}
	return "is no step of the protocol"
}

func difference(from, to *schema.State) string {
	short := func(s *schema.State) string {
		if s == nil {
			return "absent"
		}
		return fmt.Sprintf("%s of %s.%s, attempt %d, tries %d, fault %v", s.Status, s.Worker, s.Instance, s.Attempt, s.Tries, s.Fault)
	}
	return short(from) + "; then " + short(to)
}

// checkHandedOut checks I1 with the results that a trainer handed out: each
// once, and each the stored one. A trainer that is killed between the return of a
// result and its line here has handed it out without a trace: one result for each
// kill.
func (r *report) checkHandedOut(trainer string, trained []history.Trained, limits map[schema.ID]int, versions map[schema.ID][]version, kills int) {
	got := map[schema.ID]int{}
	for _, l := range trained {
		if l.Op != "result" {
			continue
		}
		if got[l.ID]++; got[l.ID] == 2 {
			r.violate("I1", "%s was handed out twice", l.ID)
		}
		if _, ok := limits[l.ID]; !ok {
			r.violate("I1", "%s was handed out and never submitted", l.ID)
		}
		stored := slices.ContainsFunc(versions[l.ID], func(v version) bool {
			return v.result != nil && v.result.Status == l.Status && v.result.Attempt == l.Attempt
		})
		if !stored {
			r.violate("I1", "%s was handed out as %s of attempt %d, which is not stored", l.ID, l.Status, l.Attempt)
		}
	}
	if r.trained == nil {
		r.trained = map[string]int{}
	}
	r.trained[trainer] = len(got)
	if missing := len(limits) - len(got); missing > kills {
		r.violate("I1", "trainer %s has not handed out %d results, and was killed %d times", trainer, missing, kills)
	}
}

// generation is an answer that a trainer has made.
type generation struct {
	key  schema.Key
	text string
}

// checkCommitted checks I3: its trainer made the generations of a result for the calls of this
// attempt, one for each call. made has the call of each generation.
func (r *report) checkCommitted(trained []history.Trained, made map[string]schema.Key) {
	for _, l := range trained {
		seen := map[int]bool{}
		for _, c := range l.Generations {
			number, name, _ := strings.Cut(c, "/")
			call, err := strconv.Atoi(number)
			if err != nil {
				r.violate("I3", "%s: %q is no call with its generation", l.ID, c)
				continue
			}
			if seen[call] {
				r.violate("I3", "%s: call %d was committed twice", l.ID, call)
			}
			seen[call] = true
			want := schema.Key{Rollout: l.ID, Attempt: l.Attempt, Call: call}
			if key, ok := made[name]; !ok {
				r.violate("I3", "%s: generation %s of %v was committed, which no trainer made", l.ID, name, want)
			} else if key != want {
				r.violate("I3", "%s: generation %s was committed for %v, and made for %v", l.ID, name, want, key)
			}
		}
	}
}

// checkGenerations checks I3: an agent reads one generation in an answer, which a
// trainer made for a call of this rollout; the text of a whole answer is the
// generation's; and the answers of one sandbox are of one attempt.
func (r *report) checkGenerations(read []history.Read, made map[string]generation) {
	attempts := map[string]int{} // by box
	for _, a := range read {
		if len(a.Gens) != 1 {
			r.violate("I3", "%s: the agent of box %s read %d generations in one answer to question %d", a.Rollout, a.Box, len(a.Gens), a.Question)
			continue
		}
		g, ok := made[a.Gens[0]]
		switch {
		case !ok:
			r.violate("I3", "%s: the agent read generation %s, which no trainer made", a.Rollout, a.Gens[0])
			continue
		case g.key.Rollout != a.Rollout:
			r.violate("I3", "%s: the agent read generation %s, which is of %v", a.Rollout, a.Gens[0], g.key)
		case a.Whole && a.Text != g.text, !strings.HasPrefix(g.text, a.Text):
			r.violate("I3", "%s: the agent read %q of generation %s, which is %q", a.Rollout, a.Text, a.Gens[0], g.text)
		}
		if was := attempts[a.Box]; was != 0 && was != g.key.Attempt {
			r.violate("I3", "%s: the agent of box %s read answers of the attempts %d and %d", a.Rollout, a.Box, was, g.key.Attempt)
		}
		attempts[a.Box] = g.key.Attempt
	}
}

// checkWire checks I6: a worker that knew of a later attempt publishes no more
// messages of its own attempt. It also checks that the protocol has every subject.
func (r *report) checkWire(p *tap) {
	dropped := p.dropped()
	p.mu.Lock()
	defer p.mu.Unlock()
	r.fenced = len(p.fences)
	for _, n := range p.heard {
		r.messages += n
	}
	for _, l := range p.late {
		r.violate("I6", "%s", l)
	}
	for subject, n := range p.foreign {
		r.violate("wire", "%d messages on %s, which the protocol does not have", n, subject)
	}
	if dropped != 0 {
		r.violate("wire", "the tap has missed %d messages", dropped)
	}
}

// measure counts simultaneous executions, and how long the rollouts of killed
// workers waited.
func (r *report) measure(b *bench, kills []kill) {
	byRollout := map[schema.ID][]agentLife{}
	for _, a := range b.census.all() {
		if a.end.IsZero() {
			a.end = time.Now()
		}
		byRollout[a.rollout] = append(byRollout[a.rollout], a)
		r.executions++
	}
	for _, lives := range byRollout {
		for i, a := range lives {
			for _, other := range lives[i+1:] {
				if other.begin.Before(a.end) && a.begin.Before(other.end) {
					r.overlaps++
				}
			}
		}
		for _, k := range kills {
			for i, a := range lives {
				if a.pid == k.pid && !a.end.Before(k.at.Add(-50*time.Millisecond)) && i+1 < len(lives) {
					r.reassigned = append(r.reassigned, lives[i+1].begin.Sub(k.at))
				}
			}
		}
	}
	slices.Sort(r.reassigned)
}

func percentile(all []time.Duration, p float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return all[min(int(p*float64(len(all))), len(all)-1)].Round(time.Millisecond)
}
