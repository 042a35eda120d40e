package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

const (
	// blockersEvery is the interval of looks for rollouts of other processes.
	blockersEvery = 10 * time.Second
	// maxBlockers bounds the messages of the queue that a look reads.
	maxBlockers = 200
	// namedBlockers is the number of rollouts that a text names, of each shard.
	namedBlockers = 4
)

// blockers finds the rollouts of other processes of this trainer that have slots while none
// of this process has one.
type blockers struct {
	*base
	outstanding *outstanding

	mu     sync.Mutex
	looked time.Time
	found  string
}

// text describes them for people; empty: there are none, or rollouts of this process run.
func (b *blockers) text(ctx context.Context) string {
	runs := false
	b.outstanding.each(func(s *submitted) { runs = runs || s.attempt > 0 && !s.over })
	if runs {
		return ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.looked) > blockersEvery {
		b.looked = time.Now()
		b.found = b.find(ctx)
	}
	return b.found
}

func (b *blockers) find(ctx context.Context) string {
	shards := map[string][]string{} // ids of running rollouts
	read := 0
	err := b.requests.OpenRequests(ctx, func(r schema.Request, _ int, _ uint64, _ time.Time) error {
		if read++; read > maxBlockers {
			return errSearched
		}
		if b.outstanding.had(r.ID) {
			return nil
		}
		if s, err := b.requests.Records.State(ctx, r.ID); err == nil && s.Owned() {
			shards[shardOf(&r)] = append(shards[shardOf(&r)], string(r.ID))
		}
		return nil
	})
	if err != nil && !errors.Is(err, errSearched) {
		b.cfg.Log.Debug().Err(err).Msg("it is not known which rollouts have slots")
	}
	var lines []string
	for _, shard := range slices.Sorted(maps.Keys(shards)) {
		ids := shards[shard]
		line := fmt.Sprintf("%d rollouts of shard %s of this trainer run", len(ids), shard)
		holder, err := b.requests.Processes.Holder(ctx, shard)
		switch {
		case err != nil:
		case holder != nil && holder.Instance != b.instance:
			line += ", which belong to " + described(holder)
		default:
			line += ", and no process answers them: turngate rollout cancel " + strings.Join(ids[:min(len(ids), namedBlockers)], " ")
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}
