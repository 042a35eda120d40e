package trainer

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// oneRollout returns a rebuilder that knows one rollout, in its first attempt.
func oneRollout(ctx context.Context) (*rebuilder, *rollout) {
	all, r := newRollouts(&base{life: ctx}), newRollout()
	r.attempt = 1
	all.of["alpha-1"] = r
	return &rebuilder{base: all.base, rollouts: all}, r
}

// TestACallWaitsForItsBase that arrived just before it and is still being read,
// as happens with sub-agents that begin at the same time.
func TestACallWaitsForItsBase(t *testing.T) {
	t.Parallel()
	message := func(text string) json.RawMessage { return json.RawMessage(`{"role":"user","content":"` + text + `"}`) }
	first := schema.Call{Messages: []json.RawMessage{message("a")}}
	whole := schema.Call{Messages: []json.RawMessage{message("a"), message("b")}}
	for name, tt := range map[string]struct{ readable, want bool }{"read": {true, false}, "not read": {false, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				b, r := oneRollout(ctx)
				key := schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 1}
				r.calls[1] = b.rollouts.newState(modelcall.IncomingCall{Key: key})
				second := Call{Call: schema.Call{Messages: whole.Messages[1:], Base: 1, Keep: 1, Digest: harness.HashesOf(&whole).Digest()}}
				need := make(chan bool)
				go func() {
					n, err := b.rebuild(schema.Key{Rollout: "alpha-1", Attempt: 1, Call: 2}, &second)
					if err != nil {
						t.Error(err)
					}
					need <- n
				}()
				synctest.Wait()
				if tt.readable {
					if _, err := b.rebuild(key, &Call{Call: first}); err != nil {
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

// TestCallsOfOneBaseAreApart: sub-agents that begin at the same point must not
// write into each other's conversation.
func TestCallsOfOneBaseAreApart(t *testing.T) {
	t.Parallel()
	b, _ := oneRollout(t.Context())
	texts := func(all ...string) (out []json.RawMessage) {
		for _, s := range all {
			out = append(out, json.RawMessage(`{"role":"user","content":"`+s+`"}`))
		}
		return out
	}
	calls := map[int]*Call{}
	take := func(number, base, keep int, conversation ...string) {
		t.Helper()
		whole := schema.Call{Messages: texts(conversation...)}
		c := &Call{Call: schema.Call{Messages: whole.Messages, Digest: harness.HashesOf(&whole).Digest()}}
		if base != 0 {
			c.Call.Base, c.Keep = base, keep
			c.Messages = whole.Messages[c.Keep:]
		}
		if need, err := b.rebuild(schema.Key{Rollout: "alpha-1", Attempt: 1, Call: number}, c); need || err != nil {
			t.Fatalf("call %d: asked for whole %v, %v", number, need, err)
		}
		calls[number] = c
	}
	take(1, 0, 0, "a", "b", "c")
	take(2, 1, 3, "a", "b", "c", "d") // the list has spare capacity now
	take(3, 2, 4, "a", "b", "c", "d", "e")
	take(4, 2, 4, "a", "b", "c", "d", "x", "y")
	take(5, 2, 4, "a", "b", "c", "d", "z")
	calls[3].Messages = append(calls[3].Messages, texts("of whoever answers it")...)
	take(6, 3, 5, "a", "b", "c", "d", "e", "f")
	take(7, 3, 5, "a", "b", "c", "d", "e", "g")
	take(8, 6, 2, "a", "b", "q")
	for number, want := range map[int][]json.RawMessage{
		2: texts("a", "b", "c", "d"), 3: texts("a", "b", "c", "d", "e", "of whoever answers it"),
		4: texts("a", "b", "c", "d", "x", "y"), 5: texts("a", "b", "c", "d", "z"), 6: texts("a", "b", "c", "d", "e", "f"), 7: texts("a", "b", "c", "d", "e", "g"), 8: texts("a", "b", "q"),
	} {
		if got := calls[number].Messages; !reflect.DeepEqual(got, want) {
			t.Errorf("call %d is %s, want %s", number, got, want)
		}
	}
}
