package queue

import (
	"maps"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// jobs has the jobs of a worker instance.
type jobs struct {
	wid, instance string // of the worker

	mu   sync.Mutex
	of   map[schema.ID]*Job
	ran  map[schema.ID]int // attempts that began here, until their end is stored
	news chan struct{}     // of capacity 1; has a value after a job began
}

func newJobs(wid, instance string) *jobs {
	return &jobs{wid: wid, instance: instance, of: map[schema.ID]*Job{}, ran: map[schema.ID]int{}, news: make(chan struct{}, 1)}
}

// add adds a job. It returns false if this worker has a job of the rollout already.
func (t *jobs) add(j *Job) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[j.Request.ID] != nil {
		return false
	}
	t.of[j.Request.ID] = j
	return true
}

func (t *jobs) remove(j *Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[j.Request.ID] == j {
		delete(t.of, j.Request.ID)
	}
}

// get returns the job of a rollout; nil if this worker has none.
func (t *jobs) get(id schema.ID) *Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of[id]
}

// claimed lists the jobs with a confirmed claim.
func (t *jobs) claimed() []*Job {
	t.mu.Lock()
	all := make([]*Job, 0, len(t.of))
	for _, j := range t.of {
		all = append(all, j)
	}
	t.mu.Unlock()
	out := all[:0]
	for _, j := range all {
		if j.claimed.Load() {
			out = append(out, j)
		}
	}
	return out
}

// due lists the jobs with a time in next that has come, and sets the next time of
// each. A job without a time gets one.
func (t *jobs) due(next map[schema.ID]time.Time, now time.Time, every time.Duration) []*Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*Job
	for id, j := range t.of {
		at, ok := next[id]
		if ok && now.Before(at) {
			continue
		}
		next[id] = now.Add(every)
		if ok {
			out = append(out, j)
		}
	}
	if len(next) > 2*len(t.of)+100 {
		maps.DeleteFunc(next, func(id schema.ID, _ time.Time) bool { return t.of[id] == nil })
	}
	return out
}

// began records that the attempt of a job runs here. Entries without a job belong to rollouts
// with an end that could not be stored. Another worker may have those by now, so there is a
// bound; without its entry a rollout gets its try back.
func (t *jobs) began(j *Job) {
	t.mu.Lock()
	if len(t.ran) > 2*len(t.of)+maxRan {
		maps.DeleteFunc(t.ran, func(id schema.ID, _ int) bool { return t.of[id] == nil })
	}
	t.ran[j.Request.ID] = j.Attempt
	t.mu.Unlock()
	select {
	case t.news <- struct{}{}:
	default:
	}
}

const maxRan = 1000

// ended records that the end of a job is stored, or that another attempt runs.
func (t *jobs) ended(j *Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ran[j.Request.ID] == j.Attempt {
		delete(t.ran, j.Request.ID)
	}
}

// past forgets an attempt that a state shows to be over.
func (t *jobs) past(s *schema.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.ran[s.ID]
	if ok && n <= s.Attempt && !(n == s.Attempt && s.Owned() && s.Worker == t.wid && s.Instance == t.instance) {
		delete(t.ran, s.ID)
	}
}

// hasRun reports whether an attempt has begun here and its end is not stored.
func (t *jobs) hasRun(id schema.ID, attempt int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return attempt > 0 && t.ran[id] == attempt
}
