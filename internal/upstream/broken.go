package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/turngate/turngate/schema"
)

// broken finds requests that fail again and again although the upstream answers
// others, such as a prompt that ends its own generation. A call waits for an upstream
// that is down; for such a request it would wait in vain.
type broken struct {
	mu       sync.Mutex
	failing  map[string]*failing
	answered time.Time // of the newest answer
	probed   time.Time // of the newest probe
	works    bool      // its result

	probing sync.Mutex // held while a probe runs
}

// failing is a request that was not answered so far.
type failing struct {
	tries int
	last  time.Time // of the newest try
}

const (
	// brokenTries is the number of tries after which a request may be broken. The
	// worker counts refusals from then on and ends the rollout after the third.
	brokenTries = 3
	// abortedTries is the same for a generation that the upstream aborted, as it does
	// when its weights change.
	abortedTries = 10
	// maxFailing bounds the number of failing requests, and failingFor their age.
	maxFailing = 4096
	failingFor = 10 * time.Minute
	// probeEvery is the time for which the result of a probe holds.
	probeEvery = 2 * time.Second
	// probeWithin bounds the time of a probe.
	probeWithin = 30 * time.Second
)

// identity names a request. A repeated request has a new key if the agent itself
// repeats it, and the same digest.
func identity(c *schema.Call) string {
	if key, err := schema.ParseKey(c.Key); err == nil && len(c.Digest) > 0 {
		return string(key.Rollout) + "/" + string(c.Digest)
	}
	return c.Key
}

// succeeded notes that the upstream answered.
func (b *broken) succeeded(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered = time.Now()
	delete(b.failing, id)
}

// failed counts a failed try. others reports whether another request was answered
// since the try before.
func (b *broken) failed(id string) (tries int, others bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	f := b.failing[id]
	if f == nil {
		if len(b.failing) >= maxFailing {
			for id, old := range b.failing {
				if now.Sub(old.last) > failingFor {
					delete(b.failing, id)
				}
			}
			if len(b.failing) >= maxFailing {
				return 1, false
			}
		}
		if b.failing == nil {
			b.failing = map[string]*failing{}
		}
		f = &failing{}
		b.failing[id] = f
	}
	others = f.tries > 0 && b.answered.After(f.last)
	f.tries, f.last = f.tries+1, now
	return f.tries, others
}

// judge returns the error of a failed request. A request that fails again and again
// while the upstream works gets the fault of a bad answer.
func (u *Upstream) judge(ctx context.Context, c *schema.Call, err error) error {
	var f *schema.Fault
	if !errors.As(err, &f) {
		return err
	}
	most := brokenTries
	switch {
	case f.Code == schema.CodeAborted:
		most = abortedTries
	case f.Code != schema.CodeUpstream || f.Status < http.StatusInternalServerError || f.Status == http.StatusServiceUnavailable:
		return err
	}
	tries, others := u.broken.failed(identity(c))
	if tries < most || !others && !u.works(ctx) {
		return err
	}
	fault := *f
	fault.Code, fault.Status, fault.RetryAfterMS = schema.CodeBadAnswer, http.StatusBadGateway, 0
	fault.Message = schema.Clip("this request failed while the upstream answers others: "+f.Message, maxMessage)
	return &fault
}

// works asks the upstream for one token.
func (u *Upstream) works(ctx context.Context) bool {
	b := &u.broken
	b.probing.Lock()
	defer b.probing.Unlock()
	b.mu.Lock()
	works, fresh := b.works, time.Since(b.probed) < probeEvery
	b.mu.Unlock()
	if fresh {
		return works
	}
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, callKey{}, nil), probeWithin)
	defer cancel()
	model, _, err := u.model(ctx)
	var body []byte
	if err == nil {
		body, err = json.Marshal(map[string]any{"model": model, "max_tokens": 1, "messages": []any{map[string]string{"role": "user", "content": "hi"}}})
	}
	var got completion
	if err == nil {
		err = u.post(ctx, body, &got)
	}
	if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
		return false // the call has ended: nothing is known
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.works, b.probed = err == nil && len(got.Choices) == 1 && got.Choices[0].FinishReason != aborted, time.Now()
	if b.works {
		u.outage.over()
	}
	return b.works
}
