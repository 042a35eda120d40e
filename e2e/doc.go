// Package e2e has scenarios against real parts: the built binary in several
// processes, a real NATS server, Docker, and real agents from npm.
package e2e
