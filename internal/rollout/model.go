package rollout

import (
	"context"
	"encoding/json"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/schema"
)

// routed sends calls to a model by their tag.
type routed struct {
	gate.Model                       // for calls with any other tag
	routes     map[string]gate.Model // by tag
}

func (r routed) Complete(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
	if to := r.routes[c.Tag]; to != nil {
		return to.Complete(ctx, c, frames)
	}
	return r.Model.Complete(ctx, c, frames)
}

// canned answers every call with this text.
type canned string

func (t canned) Complete(_ context.Context, _ schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
	message, err := json.Marshal(map[string]string{"role": "assistant", "content": string(t)})
	if err != nil {
		return schema.Reply{}, err
	}
	return schema.Reply{V: schema.Version, Message: message, FinishReason: "stop"}, frames(schema.Frame{Kind: schema.FrameFinal, Gen: "canned"})
}

// route returns the model that a route names.
func (r *Rollout) route(to schema.Route) (gate.Model, error) {
	switch {
	case to.Reply != "":
		return canned(to.Reply), nil
	case to.Upstream != "":
		up, err := findUpstream(r.Upstreams, to.Upstream, r.Request.Trainer)
		if err != nil {
			return nil, err
		}
		return r.proxy(up), nil
	default:
		return r.Services.Shard(to.Shard), nil
	}
}

// answerers returns the model that answers this rollout's calls.
func (r *Rollout) answerers() (gate.Model, error) {
	out := routed{Model: r.Services.Model, routes: map[string]gate.Model{}}
	if r.upstream != nil {
		out.Model = r.proxy(r.upstream)
	}
	for tag, to := range r.Request.Gate.Routes {
		m, err := r.route(to)
		if err != nil {
			return nil, ends.Fail(ends.UserFault(err))
		}
		out.routes[tag] = m
	}
	if len(out.routes) == 0 {
		return out.Model, nil
	}
	return out, nil
}
