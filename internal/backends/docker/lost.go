package docker

import (
	"context"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/sandboxes"
)

const (
	// lossTime bounds the search for the reason of a loss.
	lossTime = 5 * time.Second
	// afterDeath is the time in which the engine may report a lack of memory
	// after the end of its container.
	afterDeath = 500 * time.Millisecond
)

// whyLost returns sandboxes.ErrMemory if the kernel killed the box of a container
// that lacked memory, sandboxes.ErrKilled if the box crashed, and
// sandboxes.ErrLost otherwise. It reads the engine's
// events, because the engine removes a container that has ended. With an own kernel,
// processes of the container can kill the box, and a lack of memory is often not reported:
// then a killed box is sandboxes.ErrKilled.
func whyLost(api *client.Client, id string, ownKernel bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), lossTime)
	defer cancel()
	happened, failed := api.Events(ctx, events.ListOptions{
		Since: "1", // every event that the engine still has in memory
		Filters: filters.NewArgs(
			filters.Arg("type", string(events.ContainerEventType)), filters.Arg("container", id),
			filters.Arg("event", string(events.ActionOOM)), filters.Arg("event", string(events.ActionDie)), filters.Arg("event", string(events.ActionKill)),
		),
	})
	var over <-chan time.Time
	lacked, killed := false, false
	for !lacked || !killed {
		select {
		case e := <-happened:
			switch e.Action {
			case events.ActionKill: // by a client of the engine
				return sandboxes.ErrLost
			case events.ActionOOM:
				lacked = true
			case events.ActionDie:
				code, err := strconv.Atoi(e.Actor.Attributes["exitCode"])
				switch {
				case err == nil && box.Crashed(code):
					return sandboxes.ErrKilled
				case code != box.Signalled+int(syscall.SIGKILL):
					return sandboxes.ErrLost
				}
				killed, over = true, time.After(afterDeath)
			}
		case <-over:
			if ownKernel {
				return sandboxes.ErrKilled
			}
			return sandboxes.ErrLost
		case err := <-failed: // also the end of the context
			return fmt.Errorf("%w, and its engine does not tell why: %w", sandboxes.ErrLost, err)
		}
	}
	return sandboxes.ErrMemory
}
