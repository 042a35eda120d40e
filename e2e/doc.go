// Package e2e tests scenarios with real parts: the built binary in several
// processes, a real NATS server, Docker, and real agents from npm.
package e2e
