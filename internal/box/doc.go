// Package box contains the helper that runs inside every sandbox, and the
// worker's end of the connection to it.
//
// The helper (Serve) is the sandbox's first process. It starts commands, moves
// files and carries connections to the worker. It ends everything by itself
// when it has lost its worker or its life is over. The worker (Client) talks to
// it over one unix socket connection, multiplexed by yamux. Each side first
// proves that it knows a secret; the helper received the secret before any
// other process ran.
//
// One operation is one stream: a JSON header, then frames (see frame.go).
package box
