// Package models has the models that answer an agent: its trainer, another process of
// the trainer, an upstream of the worker, or a text.
package models

import (
	"context"
	"encoding/json"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/schema"
)

// routed sends calls to a model by their tag.
type routed struct {
	gate.Model                       // for calls with any other tag
	routes     map[string]gate.Model // by tag
}

func (r routed) Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) error {
	if to := r.routes[c.Tag]; to != nil {
		return to.Complete(ctx, c, frames)
	}
	return r.Model.Complete(ctx, c, frames)
}

// canned answers every call with this text.
type canned string

func (t canned) Complete(_ context.Context, _ schema.Call, frames func(schema.Frame) error) error {
	message, err := json.Marshal(map[string]string{"role": "assistant", "content": string(t)})
	if err != nil {
		return err
	}
	reply := schema.Reply{V: schema.Version, Message: message, FinishReason: "stop"}
	return frames(schema.Frame{Kind: schema.FrameFinal, Gen: "canned", Reply: &reply})
}

// Models are the models that may answer the calls of a rollout.
type Models struct {
	Request   *schema.Request
	Upstreams []Upstream
	Trainer   gate.Model
	Shard     func(shard string) gate.Model // another process of the same trainer
	// Held reports whether the trainer's Hold pauses the calls that this
	// worker sends to an upstream. The channel is closed when that may have changed.
	// Nil: never held.
	Held func(ctx context.Context) (held bool, changed <-chan struct{})
	Log  zerolog.Logger // of the rollout
}

// Upstream returns the upstream of a request that does not use its trainer's model; nil:
// it does.
func (m *Models) Upstream() (*Upstream, error) {
	if m.Request.Mode == schema.ModeGate {
		return nil, nil
	}
	return findUpstream(m.Upstreams, m.Request.Model.Upstream, m.Request.Trainer)
}

// Answering returns the model that answers the calls.
func (m *Models) Answering() (gate.Model, error) {
	out := routed{Model: m.Trainer, routes: map[string]gate.Model{}}
	up, err := m.Upstream()
	if err != nil {
		return nil, ends.Fail(ends.UserFault(err))
	}
	if up != nil {
		out.Model = m.proxy(up)
	}
	for tag, to := range m.Request.Gate.Routes {
		model, err := m.route(to)
		if err != nil {
			return nil, ends.Fail(ends.UserFault(err))
		}
		out.routes[tag] = model
	}
	if len(out.routes) == 0 {
		return out.Model, nil
	}
	return out, nil
}

// route returns the model that a route names.
func (m *Models) route(to schema.Route) (gate.Model, error) {
	switch {
	case to.Reply != "":
		return canned(to.Reply), nil
	case to.Upstream != "":
		up, err := findUpstream(m.Upstreams, to.Upstream, m.Request.Trainer)
		if err != nil {
			return nil, err
		}
		return m.proxy(up), nil
	default:
		return m.Shard(to.Shard), nil
	}
}

func (m *Models) proxy(up *Upstream) proxy {
	return proxy{up, time.Duration(m.Request.Gate.WaitMS) * time.Millisecond, m.Request.Gate.Stream == schema.StreamPass, m.Held, m.Log}
}
