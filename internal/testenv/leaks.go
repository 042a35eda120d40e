package testenv

import "go.uber.org/goleak"

// ServerGoroutines are options of goleak for tests with a NATS server in their
// process: goroutines of nats-server that outlive it.
func ServerGoroutines() []goleak.Option {
	return []goleak.Option{
		// nats-server starts this writer once per process and never ends it.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*ipQueue[...]).recycle"),
		// The clock of its file stores ends a moment after the last of them.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
		// A stream or batch that is open when its server stops may keep its writer.
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		// nats.go waits on a nil channel if the connection is closed while the first
		// asynchronous publish begins.
		goleak.IgnoreTopFunction("github.com/nats-io/nats.go/jetstream.(*jetStream).resetPendingAcksOnReconnect"),
	}
}
