// Package machines carries byte streams, called lines, over NATS: between a client such
// as a worker and a machine without an inbound port, and between an operator and a worker
// that runs commands for it. docs/machine.md describes the messages.
package machines
