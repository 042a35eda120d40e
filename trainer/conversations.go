package trainer

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"

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

// conversations has the last calls of a rollout's attempt.
type conversations struct {
	mu    sync.Mutex
	known []*known
}

// get returns the base of a call, and a copy of its call from which the new
// one may be rebuilt.
func (c *conversations) get(number, keep int) (base *known, from schema.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.known, func(k *known) bool { return k.number == number })
	if at < 0 {
		return nil, from
	}
	base = c.known[at]
	from = base.call
	if base.grown {
		from.Messages = slices.Clip(from.Messages)
	}
	base.grown = base.grown || keep == len(from.Messages)
	return base, from
}

// add adds a call, and drops the oldest beyond maxKnown.
func (c *conversations) add(k *known) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known = append(c.known, k); len(c.known) > maxKnown {
		oldest := 0
		for i, other := range c.known {
			if other.number < c.known[oldest].number {
				oldest = i
			}
		}
		c.known = slices.Delete(c.known, oldest, oldest+1)
	}
}

// gave notes the answer of this process to a call.
func (c *conversations) gave(number int, a given) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.known {
		if k.number == number {
			k.answer = a
		}
	}
}

// answer returns the answer of this process to a base.
func (c *conversations) answer(base *known) given {
	c.mu.Lock()
	defer c.mu.Unlock()
	return base.answer
}

// rebuilder makes calls whole of which the worker sent only the new part.
type rebuilder struct {
	*base
	rollouts *rollouts
	hashers  sync.Pool // of *schema.Hasher
}

// rebuild makes a call whole with its base, checks the digest of its worker, and
// keeps the call as a base. need is true if the worker must send the whole call.
func (r *rebuilder) rebuild(k schema.Key, c *Call) (need bool, err error) {
	of := c.Call.Base
	var earlier *conversations
	var before *state
	r.rollouts.change(k, func(r *rollout) { earlier, before = r.conversations, r.calls[of] })
	if earlier == nil {
		return false, nil // the attempt is over; the call will be refused
	}
	base, from := earlier.get(of, c.Keep)
	if base == nil && before != nil && of < k.Call { // the base arrived just before and is still being read
		select {
		case <-before.read:
		case <-r.life.Done():
		}
		base, from = earlier.get(of, c.Keep)
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
	hasher, _ := r.hashers.Get().(*schema.Hasher)
	if hasher == nil {
		hasher = &schema.Hasher{}
	}
	defer r.hashers.Put(hasher)
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
			r.cfg.Log.Warn().Str("call", c.Key).Msg("a call that was put together is not what its worker meant; it is asked for whole")
			return true, nil
		}
		return false, errors.New("digest: it is not that of the call that came with it")
	}
	if delta {
		a := earlier.answer(base)
		c.Base = &Base{Number: of, Messages: keep, Tools: bytes.Equal(c.Tools, base.call.Tools), Gen: a.gen, PromptIDs: a.prompt, CompletionIDs: a.completion}
	}
	earlier.add(&known{number: k.Call, call: schema.Call{Messages: messages, Tools: c.Tools, Params: params}, hashes: hashes})
	return false, nil
}
