package trainer

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/turngate/turngate/schema"
)

// known is a whole call, kept for later calls based on it.
type known struct {
	number int
	call   schema.Call
	hashes *schema.Hashes
	answer given
	grown  bool // a later call extends the memory of its messages
}

// maxKnown is the number of calls of a rollout that are kept as bases. A call
// with an older base is requested whole.
const maxKnown = 8

// base returns the base of a call, and a copy of its call from which the new
// one may be rebuilt. The caller holds the trainer's lock.
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

// knows adds a call, and drops the oldest beyond maxKnown. The caller holds the
// trainer's lock.
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

// rebuild makes a call whole with its base, checks the digest of its worker, and
// keeps the call as a base. need is true if the worker must send the whole call.
func (t *Trainer) rebuild(k schema.Key, c *Call) (need bool, err error) {
	t.mu.Lock()
	r := t.rollouts[k.Rollout]
	if r == nil || r.attempt != k.Attempt {
		t.mu.Unlock()
		return false, nil // the attempt is over; the call will be refused
	}
	of := c.Call.Base
	before := r.calls[of]
	base, from := r.base(of, c.Keep)
	t.mu.Unlock()
	if base == nil && before != nil && of < k.Call { // the base arrived just before and is still being read
		select {
		case <-before.read:
		case <-t.life.Done():
		}
		t.mu.Lock()
		base, from = r.base(of, c.Keep)
		t.mu.Unlock()
	}
	delta, keep := of != 0, c.Keep
	sameParams := delta && c.Params == nil
	if !delta {
		base = &known{hashes: &schema.Hashes{}}
	} else if base == nil || !c.Rebuild(&from) {
		return true, nil
	}
	messages := c.Messages
	c.Messages = slices.Clip(messages) // an Answerer may append to the messages
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
	var params schema.SortedMap[json.RawMessage] // a copy, because an Answerer may change the call's own
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
	if delta {
		a := base.answer
		c.Base = &Base{Number: of, Messages: keep, Tools: bytes.Equal(c.Tools, base.call.Tools), Gen: a.gen, PromptIDs: a.prompt, CompletionIDs: a.completion}
	}
	r.knows(&known{number: k.Call, call: schema.Call{Messages: messages, Tools: c.Tools, Params: params}, hashes: hashes})
	return false, nil
}
