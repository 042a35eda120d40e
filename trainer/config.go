package trainer

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// Config describes a trainer.
type Config struct {
	URL   string // of NATS, such as nats://127.0.0.1:4222; several separated by commas
	Creds string // a NATS .creds file, or a file with an nkey seed; empty: none
	// Broker is an open connection to use in place of URL and Creds. Close leaves
	// it open.
	Broker *broker.Broker
	Name   string // name of the trainer, see schema.CheckTrainer
	// Shard is the shard of the calls that this process answers, and of submitted requests
	// without a shard. One process at a time has a shard: Dial fails with an *InUseError while
	// another one runs. Default schema.DefaultShard.
	Shard string
	// TakeOver ends the process that has the shard: its methods fail with a
	// *ReplacedError.
	TakeOver bool
	// AnswerAll answers also the calls of rollouts that other processes submit, such as calls
	// that gate.routes of their requests sends to this shard. Otherwise a process answers the
	// calls of rollouts that it submitted or adopted.
	AnswerAll bool
	// NoBaseIDs leaves the ids out of Base: they are not kept. For a process that passes
	// calls on to others.
	NoBaseIDs bool
	// Orphans is for rollouts of the shard's earlier processes; Results waits for the adopted
	// ones. Default ReplaceOrphans. Without effect with AnswerAll.
	Orphans Orphans
	Lane    *int // priority of submitted rollouts, 0 is the most urgent; nil: 2
	// Slots is the largest number of submitted rollouts without a result; Submit
	// waits for the others. 0: no limit. SetSlots changes it. A result frees a slot
	// when it is stored, not when it is read. A group waits until it fits as a whole;
	// one that is larger than all slots is queued when no slot is taken.
	Slots int
	// Parallel is the number of calls that Serve answers at once. The others wait
	// and are kept alive. 0: no limit.
	Parallel int
	// Check checks a call before it is accepted, for example its length,
	// without generating. A fault refuses the call. Nil: no check.
	Check func(*schema.Call) *schema.Fault
	// Tools are run by this trainer. An agent has the tools that its request
	// lists in agent.tools. The model reads an error of a tool as the tool's result.
	Tools map[string]Tool
	// Verify finds the rewards of this trainer's requests with verify.by "trainer".
	// Nil: another process of this trainer does; such a rollout waits for one as
	// long as for an answer to a model call.
	Verify Verifier
	// Refused is called, also concurrently, for each answer that a worker
	// refused. The worker asks for another one, and after the third in a row the
	// rollout fails. Nil: the refusals are only logged and counted.
	Refused func(Refusal)
	// Ended is called once for each rollout with a result, if this process had
	// calls of it and has dropped them: the caller may free its own data of
	// these calls. It must not block.
	Ended func(schema.ID)
	// State is a file with the outstanding rollouts, so that this trainer still
	// waits for them after a restart. Empty: no file.
	State string
	// AuditEvery is the interval of checks for outstanding rollouts that the
	// broker lost. Default 5 min.
	AuditEvery time.Duration
	Log        zerolog.Logger
}
