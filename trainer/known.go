package trainer

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/turngate/turngate/schema"
)

// known is a whole call, for later ones that are based on it.
type known struct {
	number int
	call   schema.Call
	hashes *schema.Hashes
	grown  bool // a later call goes on in the memory of its messages
}

// maxKnown is how many calls of a rollout later ones can be based on here.
// What is based on an older one is asked for whole.
const maxKnown = 8

// base finds the call that another is based on, and says what that one may be
// put together from. The trainer's lock is held.
func (r *rollout) base(number, keep int) (base *known, from schema.Call) {
	at := slices.IndexFunc(r.known, func(k *known) bool { return k.number == number })
	if at < 0 {
		return nil, from
	}
	base = r.known[at]
	from = base.call
	if base.grown {
		from.Messages = slices.Clip(from.Messages)
	}
	base.grown = base.grown || keep == len(from.Messages)
	return base, from
}

// knows remembers a call, and forgets the oldest beyond maxKnown. The trainer's
// lock is held.
func (r *rollout) knows(k *known) {
	if r.known = append(r.known, k); len(r.known) > maxKnown {
		oldest := 0
		for i, other := range r.known {
			if other.number < r.known[oldest].number {
				oldest = i
			}
		}
		r.known = slices.Delete(r.known, oldest, oldest+1)
	}
}

// whole rebuilds a call from its base, checks that it is what its worker
// meant, and remembers it for others. need is true when the worker must send
// all of it.
func (t *Trainer) whole(k schema.Key, c *schema.Call) (need bool, err error) {
	t.mu.Lock()
	r := t.rollouts[k.Rollout]
	if r == nil || r.attempt != k.Attempt {
		t.mu.Unlock()
		return false, nil // over; it will be refused
	}
	before := r.calls[c.Base]
	base, from := r.base(c.Base, c.Keep)
	t.mu.Unlock()
	if base == nil && before != nil && c.Base < k.Call { // it came just before this one, and is being read
		select {
		case <-before.read:
		case <-t.life.Done():
		}
		t.mu.Lock()
		base, from = r.base(c.Base, c.Keep)
		t.mu.Unlock()
	}
	delta, keep := c.Base != 0, c.Keep
	sameParams := delta && c.Params == nil
	if !delta {
		base = &known{hashes: &schema.Hashes{}}
	} else if base == nil || !c.Rebuild(&from) {
		return true, nil
	}
	messages := c.Messages
	c.Messages = slices.Clip(messages) // whoever answers it may append to them
	hasher, _ := t.hashers.Get().(*schema.Hasher)
	if hasher == nil {
		hasher = &schema.Hasher{}
	}
	defer t.hashers.Put(hasher)
	hashes := base.hashes.Based(keep)
	for _, m := range c.Messages[keep:] {
		hashes.Messages = append(hashes.Messages, hasher.Message(m))
	}
	if delta && bytes.Equal(c.Tools, base.call.Tools) {
		hashes.Tools = base.hashes.Tools
	} else {
		hashes.Tools = hasher.Tools(c.Tools)
	}
	var params schema.SortedMap[json.RawMessage] // not the call's own, which whoever answers it may change
	if sameParams {
		params, hashes.Params = base.call.Params, base.hashes.Params
	} else {
		params, hashes.Params = maps.Clone(c.Params), hasher.Params(c.Params)
	}
	if len(c.Digest) > 0 && !bytes.Equal(c.Digest, hashes.Digest()) {
		if delta {
			t.cfg.Log.Warn().Str("call", c.Key).Msg("a call that was put together is not what its worker meant; it is asked for whole")
			return true, nil
		}
		return false, errors.New("digest: it is not that of the call that came with it")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r.knows(&known{number: k.Call, call: schema.Call{Messages: messages, Tools: c.Tools, Params: params}, hashes: hashes})
	return false, nil
}
