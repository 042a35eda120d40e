// Package machines carries byte streams, called lines, between a client such as a
// worker and a machine without an inbound port, over NATS. docs/machine.md describes
// the messages.
package machines
