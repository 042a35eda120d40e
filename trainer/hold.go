package trainer

import (
	"net/http"
	"slices"
	"sync"

	"github.com/turngate/turngate/schema"
)

// Selection selects rollouts by all its fields that are set; the zero value
// selects every rollout.
type Selection struct {
	Group   string // of rollouts that this process submitted
	Version string // policy version of the newest answer, by this process's replies
	// Only selects by id. It is called often; it must be quick and must not call
	// the trainer.
	Only func(schema.ID) bool
}

// all reports whether every rollout is selected.
func (s *Selection) all() bool { return s.Group == "" && s.Version == "" && s.Only == nil }

// selector finds the fields of rollouts that a Selection asks for.
type selector struct {
	outstanding *outstanding
	rollouts    *rollouts
}

// selects reports whether a selection has a rollout.
func (f selector) selects(s *Selection, id schema.ID) bool {
	if s.Group != "" {
		if o, ok := f.outstanding.get(id); !ok || o.request.Group != s.Group {
			return false
		}
	}
	if s.Version != "" && f.rollouts.version(id) != s.Version {
		return false
	}
	return s.Only == nil || s.Only(id)
}

// releases is the number of messages that end a hold.
const releases = 3

// holds announces holds to workers.
type holds struct {
	*base
	selector selector
	handout  *handout

	mu     sync.Mutex
	serial int64 // serial number of the last message
	sent   int   // messages since the hold changed
}

// set holds the selected rollouts; nil: none.
func (h *holds) set(s *Selection) {
	h.handout.setHold(s)
	h.mu.Lock()
	h.sent = 0
	h.mu.Unlock()
	h.announce()
}

// announce sends workers with an upstream the rollouts that have to wait. It
// repeats the message during a hold; the end of a hold is sent as often as releases says.
func (h *holds) announce() {
	h.mu.Lock()
	s := h.handout.selection()
	if s == nil && h.sent >= releases {
		h.mu.Unlock()
		return
	}
	h.sent++
	h.serial++
	m := schema.Hold{V: schema.Version, Instance: h.instance, Serial: h.serial, All: s != nil && s.all()}
	h.mu.Unlock()
	if s != nil && !m.All {
		m.IDs = h.upstream()
		m.IDs = slices.DeleteFunc(m.IDs, func(id schema.ID) bool { return !h.selector.selects(s, id) })
		slices.Sort(m.IDs)
	}
	if err := h.requests.Hold(&m); err != nil {
		h.cfg.Log.Warn().Err(err).Msg("a hold was not announced to the workers that use an upstream; it is sent again")
	}
}

// upstream lists the outstanding rollouts that use an upstream.
func (h *holds) upstream() (ids []schema.ID) {
	h.selector.outstanding.each(func(s *submitted) {
		if s.request.UsesUpstream() {
			ids = append(ids, s.request.ID)
		}
	})
	return ids
}

// abort ends the generations of the selected rollouts that have begun, and returns their
// number.
func (h *holds) abort(s *Selection) int {
	n := 0
	for _, c := range h.selector.rollouts.calls() {
		if !c.out.Load() || !h.selector.selects(s, c.key.Rollout) {
			continue
		}
		f := schema.Faultf("call", schema.CodeAborted, schema.WhoTrainer, "the generation was ended, and the call is answered anew")
		f.Status = http.StatusTooEarly
		if (&Pending{state: c}).Fault(f) == nil {
			n++
		}
	}
	return n
}
