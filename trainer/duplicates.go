package trainer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// ExistsError reports that a rollout's id was used before.
type ExistsError struct {
	ID    schema.ID
	Group string
	At    time.Time // of its first use, by the server's clock; zero: not known
}

func (e *ExistsError) Error() string {
	what := fmt.Sprintf("id: %q", e.ID)
	if e.Group != "" {
		what = fmt.Sprintf("group: %q", e.Group)
	}
	if e.At.IsZero() {
		return what + " was submitted before: want a name that was not used"
	}
	return what + " was submitted before, at " + e.At.Local().Format(time.DateTime) + ": want a name that was not used"
}

// maxQueueSearched bounds the messages of the queue in which SubmitNew looks for ids.
const maxQueueSearched = 2000

// errSearched ends a search in the queue.
var errSearched = errors.New("the search is over")

// duplicates finds rollouts that were submitted before.
type duplicates struct {
	*base
	outstanding *outstanding
}

// check returns an *ExistsError if a rollout with the id of a request was submitted
// before.
func (d *duplicates) check(ctx context.Context, requests []schema.Request) error {
	groups := make(map[schema.ID]string, len(requests))
	for i := range requests {
		id := requests[i].ID
		groups[id] = requests[i].Group
		if s, ok := d.outstanding.get(id); ok {
			return &ExistsError{ID: id, Group: requests[i].Group, At: s.at}
		}
	}
	var first sync.Once
	var used *ExistsError
	all, op := errgroup.WithContext(ctx)
	all.SetLimit(adoptAtOnce)
	for id, group := range groups {
		all.Go(func() error {
			state, err := d.requests.Records.State(op, id)
			if errors.Is(err, broker.ErrNotFound) {
				return nil
			}
			if err == nil {
				first.Do(func() { used = &ExistsError{ID: id, Group: group, At: d.firstUse(op, id, state)} })
			}
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return fmt.Errorf("look for earlier rollouts of these names: %w", err)
	}
	if used != nil {
		return used
	}
	n := 0
	err := d.requests.OpenRequests(ctx, func(r schema.Request, _ int, _ uint64, at time.Time) error {
		if group, ok := groups[r.ID]; ok {
			return &ExistsError{ID: r.ID, Group: group, At: at}
		}
		if n++; n >= maxQueueSearched {
			return errSearched
		}
		return nil
	})
	if errors.Is(err, errSearched) {
		return nil
	}
	return err
}

// firstUse returns the time at which a worker first took a rollout; that of its state if
// none did.
func (d *duplicates) firstUse(ctx context.Context, id schema.ID, s schema.State) time.Time {
	if at, err := d.requests.FirstTaken(ctx, id); err == nil && !at.IsZero() {
		return at
	}
	if s.Since == 0 {
		return time.Time{}
	}
	return time.UnixMilli(s.Since)
}
