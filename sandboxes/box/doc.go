// Package box is the helper inside every sandbox and the worker's end of the
// line to it.
//
// The helper (Serve) is the sandbox's first process. It starts commands, moves
// files, carries connections to the worker, and ends everything by itself
// when it has lost its worker or its time is over. The worker (Client) speaks
// to it over one unix socket connection, multiplexed by yamux; each side
// first proves that it knows a secret that the helper was given before
// anything else ran.
//
// One operation is one stream: a JSON header, then frames (see frame.go).
package box
