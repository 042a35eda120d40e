// Package schema holds the messages that workers, trainers and taps exchange,
// as msgpack maps with snake_case keys. docs/protocol.md describes the same
// messages; clients in other languages test themselves with the golden vectors
// in testdata.
//
// No other package imports a msgpack library. Decode never trusts its input:
// it checks shape, depth and sizes before it builds anything.
package schema

// Version is the protocol version that this package writes into every
// message. Unknown keys are ignored, so additions do not change it.
const Version = 1
