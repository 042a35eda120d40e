package chaos_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/schema"
)

// report is what the histories of a run come to.
type report struct {
	violations map[string][]string // by invariant
	rollouts   int
	takeovers  int
	attempts   map[schema.ID]int
	overlaps   int // executions of one rollout at the same time
	fenced     int // attempts that saw that they were not theirs any more
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

// check compares the histories with the invariants. Nothing in them was
// written by the part of a worker that is checked.
func check(b *bench, p *tap, kills []kill) (*report, error) {
	boxes, err := lines[history.Box](filepath.Join(b.dir, "sandboxes.jsonl"))
	if err != nil {
		return nil, err
	}
	told, err := lines[history.Trained](filepath.Join(b.dir, "trainer-alpha.jsonl"))
	if err != nil {
		return nil, err
	}
	r := &report{attempts: map[schema.ID]int{}}
	limits := map[schema.ID]int{}
	for _, t := range told {
		if t.Op == "submit" {
			limits[t.ID] = t.Max
		}
	}
	r.rollouts = len(limits)
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, most := range limits {
		r.checkRollout(p, id)
		r.checkTries(p, id, most)
		if attempt := r.attempts[id]; b.steady && attempt > 1 {
			r.violate("I4", "%s: it was run %d times, and no worker was stopped", id, attempt)
		}
	}
	r.checkGenerations(boxes, told)
	if err := r.checkFences(b, p); err != nil {
		return nil, err
	}
	r.measure(b, boxes, kills)
	return r, nil
}

// checkRollout looks at I1 and I2.
func (r *report) checkRollout(p *tap, id schema.ID) {
	state, result, err := p.final(id)
	if err != nil {
		r.violate("I1", "%s has no end: %v", id, err)
		return
	}
	if !state.Status.Terminal() || state.Status != result.Status {
		r.violate("I1", "%s: state %s, result %s", id, state.Status, result.Status)
	}
	if n := len(p.kept[id]); n > 1 {
		r.violate("I1", "%s: %d results were stored", id, n)
	}
	if state.Attempt != result.Attempt {
		r.violate("I2", "%s: the state's attempt is %d, the result's %d", id, state.Attempt, result.Attempt)
	}
	r.attempts[id] = state.Attempt
	if state.Attempt > 1 {
		r.takeovers += state.Attempt - 1
	}
}

// checkTries looks at I4: an attempt is a try, unless it was given back; and no
// worker gives an execution up by itself, since nothing is done to sandboxes.
func (r *report) checkTries(p *tap, id schema.ID, most int) {
	attempts, returned := 0, map[int]bool{}
	tries := map[int]int{}
	for _, s := range p.states[id] {
		switch s.Status {
		case schema.StatusRunning:
			attempts = max(attempts, s.Attempt)
			tries[s.Attempt] = s.Tries
		case schema.StatusQueued:
			if s.Tries < tries[s.Attempt] {
				returned[s.Attempt] = true
			} else if s.Fault != nil {
				r.violate("I4", "%s: attempt %d was given up: %v", id, s.Attempt, s.Fault)
			}
		}
		if s.Tries > most {
			r.violate("I4", "%s: %d tries, at most %d", id, s.Tries, most)
		}
	}
	if attempts-len(returned) > most {
		r.violate("I4", "%s: %d attempts of which %d were given back, at most %d tries", id, attempts, len(returned), most)
	}
}

// checkGenerations looks at I3: what one answer of the gate to an agent holds
// is of one generation, and a call was committed once.
func (r *report) checkGenerations(boxes []history.Box, told []history.Trained) {
	type answer struct {
		box           string
		question, try int
	}
	read := map[answer]map[string]bool{}
	for _, b := range boxes {
		if b.Op != "read" {
			continue
		}
		k := answer{b.Box, b.Question, b.Try}
		if read[k] == nil {
			read[k] = map[string]bool{}
		}
		read[k][b.Gen] = true
	}
	for k, gens := range read {
		if len(gens) > 1 {
			r.violate("I3", "the agent of box %s read %d generations in one answer to question %d", k.box, len(gens), k.question)
		}
	}
	for _, t := range told {
		if t.Op != "result" {
			continue
		}
		seen := map[string]bool{}
		for _, g := range t.Generations {
			call, _, _ := strings.Cut(g, "/")
			if seen[call] {
				r.violate("I3", "%s: call %s was committed twice", t.ID, call)
			}
			seen[call] = true
		}
	}
}

var fencedLine = regexp.MustCompile(`"rollout":"([^"]+)","attempt":(\d+).*"time":(\d+),"message":"fenced"`)

// checkFences looks at I6: whatever a tap heard of an attempt was published
// before that attempt's worker saw its fence. Both times are by that worker's
// clock.
func (r *report) checkFences(b *bench, p *tap) error {
	type run struct {
		id      schema.ID
		attempt int
	}
	seen := map[run]int64{}
	for _, w := range b.workers {
		data, err := os.ReadFile(filepath.Join(b.dir, w.role+".log"))
		if err != nil {
			return err
		}
		for _, m := range fencedLine.FindAllStringSubmatch(string(data), -1) {
			attempt, _ := strconv.Atoi(m[2])
			at, _ := strconv.ParseInt(m[3], 10, 64)
			k := run{schema.ID(m[1]), attempt}
			if old, ok := seen[k]; !ok || at < old {
				seen[k] = at
			}
		}
	}
	r.fenced = len(seen)
	const sameMoment = 5 // ms
	for _, e := range p.events {
		if at, ok := seen[run{e.rollout, e.attempt}]; ok && e.at > at+sameMoment {
			r.violate("I6", "%s attempt %d told a %s event %d ms after its fence", e.rollout, e.attempt, e.kind, e.at-at)
		}
	}
	return nil
}

// measure finds take-overs and executions at the same time.
func (r *report) measure(b *bench, boxes []history.Box, kills []kill) {
	type span struct {
		pid         int
		attempt     int
		begin, over time.Time
	}
	byBox := map[string]*span{}
	byRollout := map[schema.ID][]*span{}
	for _, x := range boxes {
		switch x.Op {
		case "create":
			s := &span{pid: x.PID, attempt: x.Attempt, begin: time.Unix(0, x.At)}
			byBox[x.Box] = s
			byRollout[x.Rollout] = append(byRollout[x.Rollout], s)
		case "close":
			if s := byBox[x.Box]; s != nil {
				s.over = time.Unix(0, x.At)
			}
		}
	}
	for _, spans := range byRollout {
		for _, s := range spans {
			if s.over.IsZero() {
				s.over = b.ledger.died(s.pid)
			}
		}
		for i, s := range spans {
			for _, other := range spans[i+1:] {
				if other.attempt != s.attempt && other.begin.Before(s.over) && s.begin.Before(other.over) {
					r.overlaps++
				}
			}
		}
	}
	for _, k := range kills {
		for _, spans := range byRollout {
			for i, s := range spans {
				if s.pid == k.pid && !s.over.Before(k.at.Add(-50*time.Millisecond)) && i+1 < len(spans) {
					r.reassigned = append(r.reassigned, spans[i+1].begin.Sub(k.at))
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
