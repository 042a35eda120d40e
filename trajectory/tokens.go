package trajectory

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Reasons for which the tokens of an answer are not trained. The other reasons are
// codes of findings.
const (
	UntrainedRole = "role"        // the role of the call is none of Options.Roles
	UntrainedCut  = "tokens_lost" // the next prompt of the row has other tokens for the end of the answer; see Options.MaxLost
	untrainedRow  = "too_many_rows"
)

// Tokens counts the tokens that the model sampled in calls of Options.Roles. Usually
// all are trained.
type Tokens struct {
	// Sampled is the number of completion ids, and for calls without ids the number
	// that their usage reports.
	Sampled int `json:"sampled"`
	// Trained is the number of tokens with a loss mask of 1 in all rows.
	Trained int `json:"trained"`
	// Untrained has the others by their reasons, in the order of these.
	Untrained []Untrained `json:"untrained,omitempty"`
	// Others is the number of sampled tokens in calls of other roles.
	Others int `json:"others,omitempty"`
}

// Untrained counts sampled tokens that are not trained for one reason.
type Untrained struct {
	Reason string `json:"reason"`
	Calls  int    `json:"calls"`
	Tokens int    `json:"tokens"` // without ids and usage: 0
}

// Add adds the tokens of another rollout.
func (t *Tokens) Add(more Tokens) {
	t.Sampled, t.Trained, t.Others = t.Sampled+more.Sampled, t.Trained+more.Trained, t.Others+more.Others
	for _, u := range more.Untrained {
		t.untrained(u)
	}
}

func (t *Tokens) untrained(u Untrained) {
	i, ok := slices.BinarySearchFunc(t.Untrained, u.Reason, func(u Untrained, reason string) int { return strings.Compare(u.Reason, reason) })
	if !ok {
		t.Untrained = slices.Insert(t.Untrained, i, Untrained{Reason: u.Reason})
	}
	t.Untrained[i].Calls, t.Untrained[i].Tokens = t.Untrained[i].Calls+u.Calls, t.Untrained[i].Tokens+u.Tokens
}

func (t Tokens) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d sampled tokens trained", t.Trained, t.Sampled)
	if t.Sampled > 0 {
		fmt.Fprintf(&b, " (%d %%)", t.Trained*100/t.Sampled)
	}
	for i, u := range t.Untrained {
		if i == 0 {
			b.WriteString("; not trained")
		} else {
			b.WriteByte(',')
		}
		calls := "calls"
		if u.Calls == 1 {
			calls = "call"
		}
		fmt.Fprintf(&b, " %d in %d %s (%s)", u.Tokens, u.Calls, calls, u.Reason)
	}
	if t.Others > 0 {
		fmt.Fprintf(&b, "; %d of other roles", t.Others)
	}
	return b.String()
}

// count counts the tokens of all answers.
func (r *reader) count() {
	t := &r.out.Tokens
	for _, c := range r.out.Calls {
		n := c.Completion
		if n == 0 {
			n = int(min(max(c.Usage.CompletionTokens, 0), math.MaxInt32))
		}
		if !slices.Contains(r.o.Roles, c.Tag) {
			t.Others += n
			continue
		}
		if c.trainable && c.row == 0 {
			c.Untrained = untrainedRow
		}
		t.Sampled, t.Trained = t.Sampled+n, t.Trained+c.TrainedOn
		if c.Untrained != "" {
			t.untrained(Untrained{c.Untrained, 1, n - c.TrainedOn})
		}
	}
}
