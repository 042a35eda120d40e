package trainer

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/turngate/turngate/schema"
)

// TestACallWaitsForItsBase that came just before it and is still being read,
// as those of sub-agents do that begin at the same time.
func TestACallWaitsForItsBase(t *testing.T) {
	message := func(text string) json.RawMessage { return json.RawMessage(`{"role":"user","content":"` + text + `"}`) }
	first := schema.Call{Messages: []json.RawMessage{message("a")}}
	whole := schema.Call{Messages: []json.RawMessage{message("a"), message("b")}}
	for name, tt := range map[string]struct{ readable, want bool }{"read": {true, false}, "not read": {false, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				tr := &Trainer{life: ctx, rollouts: map[schema.ID]*rollout{"alpha-1": newRollout()}}
				r := tr.rollouts["alpha-1"]
				r.attempt = 1
				key := schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 1}
				r.calls[1] = tr.newState(key)
				second := schema.Call{Messages: whole.Messages[1:], Base: 1, Keep: 1, Digest: whole.HashesOf().Digest()}
				need := make(chan bool)
				go func() {
					n, err := tr.whole(schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 2}, &second)
					if err != nil {
						t.Error(err)
					}
					need <- n
				}()
				synctest.Wait()
				if tt.readable {
					if _, err := tr.whole(key, &first); err != nil {
						t.Fatal(err)
					}
				}
				close(r.calls[1].read)
				if got := <-need; got != tt.want || !tt.want && len(second.Messages) != 2 {
					t.Errorf("asked for the whole call: %v, want %v; %d messages", got, tt.want, len(second.Messages))
				}
			})
		})
	}
}
