package trainer

import (
	"context"

	"github.com/turngate/turngate/schema"
)

// Call is a model call that waits for an answer.
type Call struct {
	schema.Call // whole, also if its worker sent only the new part

	// Gen names this generation. A result lists the generations that reached the
	// agent (schema.Committed): train only on these.
	Gen string
	// Base is the earlier call that this one continues; nil: none that this
	// process knows.
	Base *Base

	pending *Pending
}

// Base is an earlier call of the same attempt. A trainer that keeps its ids need
// not tokenize the shared messages again.
type Base struct {
	Number   int    // number of the call
	Messages int    // number of messages, from the first, that both calls have
	Tools    bool   // both have the same tools
	Gen      string // generation of the answer by this process; empty: it gave none

	// The ids of that answer, as this process gave them.
	PromptIDs     schema.TokenIDs
	CompletionIDs schema.TokenIDs
}

// Emit sends a piece of the answer before the whole one, which has all pieces
// again. An error means that the rest is not wanted, or names a wrong field.
func (c *Call) Emit(d *schema.Delta) error { return c.pending.Stream().Delta(d) }

// Answerer answers a call. It may emit pieces of the answer before it returns
// the whole reply. A *schema.Fault as its error is the fault that the call gets;
// any other error is a fault with status 500, which workers retry. The context
// ends when the answer is no longer wanted. It has the call's trace as its remote span
// context.
type Answerer func(ctx context.Context, c *Call) (*schema.Reply, error)

// Whole returns an Answerer that emits nothing and needs the messages alone.
func Whole(f func(ctx context.Context, c *schema.Call) (*schema.Reply, error)) Answerer {
	return func(ctx context.Context, c *Call) (*schema.Reply, error) { return f(ctx, &c.Call) }
}

// given is an answer of this process to a call on which later calls may be based.
type given struct {
	gen                string
	prompt, completion schema.TokenIDs
}
