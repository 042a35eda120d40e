package broker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// maxAccountPending is the largest number of bytes that the server in this process
	// keeps for all connections of a trainer, or of the watchers, that do not read.
	maxAccountPending = 128 << 20
	// pendingEvery is the interval of the checks. In between, maxPending bounds each
	// connection and maxConnections their number.
	pendingEvery = 250 * time.Millisecond
)

// boundPending closes connections of an account that reads too slowly, those with the
// most bytes first, until the context ends.
func (e *Embedded) boundPending(ctx context.Context) {
	tick := time.NewTicker(pendingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all, err := e.srv.Connz(&server.ConnzOptions{Username: true, Sort: server.ByPending, Limit: 1 << 16})
		if err != nil {
			e.config.Log.Debug().Err(err).Msg("the connections of the NATS server are not known")
			continue
		}
		for _, c := range overPending(all.Conns, maxAccountPending) {
			e.config.Log.Warn().Str("account", c.Account).Str("client", c.Name).Int("bytes", c.Pending).Msg("a connection that does not read was closed: the connections of its account have too many bytes pending")
			_ = e.srv.DisconnectClientByID(c.Cid) // it may be gone
		}
	}
}

// overPending returns the connections to close so that no account but the workers' and
// the server's own has more than most bytes pending.
func overPending(all []*server.ConnInfo, most int) (out []*server.ConnInfo) {
	pending := map[string]int{}
	for _, c := range all {
		pending[c.Account] += c.Pending
	}
	all = slices.SortedFunc(slices.Values(all), func(a, b *server.ConnInfo) int { return cmp.Compare(b.Pending, a.Pending) })
	for _, c := range all {
		if c.Account == accountWorkers || c.Account == accountSystem || pending[c.Account] <= most {
			continue
		}
		pending[c.Account] -= c.Pending
		out = append(out, c)
	}
	return out
}
