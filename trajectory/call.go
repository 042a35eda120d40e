package trajectory

import (
	"encoding/json"
	"fmt"

	"github.com/turngate/turngate/schema"
)

// RoleDiscarded is the role of a call without an answer that reached the agent.
// Other roles are the tags of calls.
const RoleDiscarded = "discarded"

// The ways in which a call is joined to its parent.
const (
	MergeRoot    = "root"    // the call has no parent
	MergeClean   = "clean"   // the prompt begins with all tokens of the parent; without ids: with its messages and its answer
	MergeRealign = "realign" // tokens of the prompt replace the last tokens of the parent's answer, of which no row trains these
	MergeFork    = "fork"    // the call continues the parent, but its row begins anew
)

// Reasons of a break.
const (
	ReasonCompaction = "compaction" // the conversation is shorter than before
	ReasonEdit       = "edit"       // the agent changed an earlier message
	ReasonSubagent   = "subagent"   // a conversation of an agent that the agent started
	ReasonAux        = "aux"        // a helper's conversation
	ReasonBranch     = "branch"     // the parent is continued by an earlier call, too
	ReasonDrift      = "drift"      // the answer before has other token ids in the prompt, and more than Options.MaxLost would be lost
	ReasonPrompt     = "prompt"     // the prompt differs from the earlier one before the last answer, with the same messages
	ReasonPolicy     = "policy"     // Options.Merge allows no other way
)

// Call is a model call of a rollout.
type Call struct {
	Number       int    `json:"call"`
	Parent       int    `json:"parent"` // number of the call that this one continues; 0: none
	Role         string `json:"role"`
	Merge        string `json:"merge"`
	Reason       string `json:"reason,omitempty"` // of a break; see Break
	Drift        int    `json:"drift,omitempty"`  // tokens of the parent's path that the prompt does not begin with
	Gen          string `json:"gen,omitempty"`
	FinishReason string `json:"finish_reason,omitempty"`
	Prompt       int    `json:"prompt_tokens"`       // number of prompt ids
	Completion   int    `json:"completion_tokens"`   // number of completion ids
	TrainedOn    int    `json:"trained_tokens"`      // number of completion ids that a row trains
	Trained      bool   `json:"trained"`             // a row trains one of them, or more
	Untrained    string `json:"untrained,omitempty"` // reason for which no row trains the others; see Tokens

	Tag      string               `json:"-"`
	Model    string               `json:"-"`
	At       int64                `json:"-"` // Unix ms of the request
	MS       int64                `json:"-"` // duration
	Fault    *schema.Fault        `json:"-"`
	Messages []json.RawMessage    `json:"-"` // with Options.Messages: the messages behind the first Keep ones of call Base
	Base     int                  `json:"-"`
	Keep     int                  `json:"-"`
	Message  json.RawMessage      `json:"-"` // with Options.Messages: the answer
	Usage    schema.Usage         `json:"-"`
	Versions []schema.VersionSpan `json:"-"`

	index        int32 // in Rollout.Calls
	parent       *Call // nil for a fork: the call before this one in its row
	conversation int32
	messages     int  // number of messages
	broken       bool // the messages are not known
	asked, ended int  // the lines of its request and its answer
	answered     bool
	committed    bool
	hasIDs       bool
	said         said
	tools        bool // the call offers tools
	trainable    bool // the completion may be trained on
	kept         int  // tokens of the row before that the prompt keeps
	fresh        schema.TokenIDs
	completion   schema.TokenIDs
	logprobs     schema.Logprobs
	hash         uint64 // of all tokens up to the end of the completion
	continued    bool   // a call that continues this one, directly or not, is trainable
	row          int    // 1, 2, ...: the row that trains the completion
}

// end is the number of tokens up to the end of the completion.
func (c *Call) end() int { return c.kept + c.fresh.Len() + c.completion.Len() }

// Break is a place at which a row begins that is not the rollout's first.
type Break struct {
	Call   int    `json:"call"`
	After  int    `json:"after"` // the call that it follows in its conversation; 0: none
	Reason string `json:"reason"`
	Drift  int    `json:"drift,omitempty"`
	Text   string `json:"text,omitempty"`
}

func (c *Call) breakText() string {
	switch c.Reason {
	case ReasonCompaction:
		return fmt.Sprintf("call %d begins with a shorter conversation than before", c.Number)
	case ReasonEdit:
		return fmt.Sprintf("the agent changed an earlier message before call %d", c.Number)
	case ReasonSubagent:
		return fmt.Sprintf("call %d begins the conversation of a sub-agent", c.Number)
	case ReasonAux:
		return fmt.Sprintf("call %d begins the conversation of a helper", c.Number)
	case ReasonBranch:
		return fmt.Sprintf("call %d continues call %d, as an earlier call does", c.Number, c.Parent)
	case ReasonDrift:
		return fmt.Sprintf("the answer of call %d has other token ids in the prompt of call %d: %d tokens differ", c.Parent, c.Number, c.Drift)
	case ReasonPrompt:
		return fmt.Sprintf("the prompt of call %d differs from that of call %d before its answer: %d tokens differ", c.Number, c.Parent, c.Drift)
	default:
		return fmt.Sprintf("call %d has a row of its own", c.Number)
	}
}
