package wire

import "github.com/nats-io/nats.go/jetstream"

// Headers of an atomic batch (NATS ADR-50) and of a compare-and-set.
const (
	HeaderBatch       = "Nats-Batch-Id"
	HeaderBatchSeq    = "Nats-Batch-Sequence"
	HeaderBatchCommit = "Nats-Batch-Commit"
	HeaderExpect      = "Nats-Expected-Last-Subject-Sequence"
	HeaderExpectOf    = "Nats-Expected-Last-Subject-Sequence-Subject" // of another subject than the message's own
	HeaderMsgID       = "Nats-Msg-Id"
)

// Error codes of the server that callers decide on.
const (
	CodeWrongLast      jetstream.ErrorCode = 10071
	CodeWrongLastConst jetstream.ErrorCode = 10164
	CodeStoreFailed    jetstream.ErrorCode = 10077 // a full stream refuses a message
	CodeResources      jetstream.ErrorCode = 10023 // the server's disk or memory is full
	CodeStorage        jetstream.ErrorCode = 10047 // no room for a stream of that size
	CodePeers          jetstream.ErrorCode = 10005 // no servers with that room
	CodeDuplicate      jetstream.ErrorCode = 10201 // the stream has a message of the batch already
	CodeBatchesOpen    jetstream.ErrorCode = 10210 // too many batches at once
	CodeBatchPartial   jetstream.ErrorCode = 10176 // a part of the batch was lost on the way
	CodeNoStream       jetstream.ErrorCode = 10059 // it is made again
	CodeInProcess      jetstream.ErrorCode = 10158 // the same message is being stored, for example while a quorum is missing
)
