// Package schema holds the messages that workers, trainers and taps exchange,
// as msgpack maps with snake_case keys. It is the Go form of docs/protocol.md;
// the golden vectors in testdata keep clients in other languages equal to it.
//
// It is the only package that imports a msgpack library. Decoding never
// trusts its input: shape, depth and sizes are checked before anything is
// built from it (see Decode).
package schema

// Version is the protocol version that this package writes into every
// message. Unknown keys are ignored, so additions do not change it.
const Version = 1
