package front

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/schema"
)

// Bounds of rollout_events.
const (
	eventsLimit   = 50
	maxEvents     = 200
	maxEventBytes = 1 << 20
	eventsWait    = 2 // seconds
	maxEventsWait = 30
)

// maxMessage is the largest message of a client of MCP in bytes. Its values in memory are far
// larger.
const maxMessage = 1 << 20

// mcp answers a request of the Model Context Protocol. There are no sessions, so that several
// fronts are as one.
func (s *Server) mcp(w http.ResponseWriter, r *http.Request, t *tenant) error {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
	if err != nil {
		return readError(err)
	}
	if bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("[")) { // all of its calls would run at once
		return problemf(http.StatusBadRequest, schema.CodeInvalid, "the body is a batch: want one message of JSON-RPC")
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return t.tools }, &mcp.StreamableHTTPOptions{
		Stateless: true, JSONResponse: true,
		DisableLocalhostProtection: true, // a page of another origin has no token; a balancer may have another Host
	}).ServeHTTP(w, r)
	return nil
}

// Arguments of the tools.
type (
	submitArgs struct {
		Request map[string]any `json:"request" jsonschema:"the rollout: an object of the form Request in /openapi.json, without id and group"`
		N       int            `json:"n,omitempty" jsonschema:"number of rollouts, 1 to 1000; default 1"`
		Group   string         `json:"group,omitempty" jsonschema:"name of their group; the same one is submitted once"`
		Key     string         `json:"key,omitempty" jsonschema:"names this submission if the group has no name: the same one is submitted once"`
	}
	idArgs struct {
		ID string `json:"id" jsonschema:"id of the rollout"`
	}
	listArgs struct {
		Status string `json:"status,omitempty" jsonschema:"statuses, separated by commas: queued, running, cancelling, done, failed, cancelled, dead"`
		Group  string `json:"group,omitempty"`
		Task   string `json:"task,omitempty"`
		Label  string `json:"label,omitempty" jsonschema:"a label, as NAME=VALUE"`
		Limit  int    `json:"limit,omitempty" jsonschema:"1 to 200; default 50"`
		Cursor string `json:"cursor,omitempty" jsonschema:"next of an earlier page"`
	}
	eventsArgs struct {
		ID    string `json:"id" jsonschema:"id of the rollout"`
		After string `json:"after,omitempty" jsonschema:"next of an earlier answer; default: from the first event"`
		Limit int    `json:"limit,omitempty" jsonschema:"1 to 200; default 50"`
		Wait  int    `json:"wait,omitempty" jsonschema:"seconds to wait for as many events, 1 to 30; default 2"`
	}
	cancelArgs struct {
		IDs    []string `json:"ids,omitempty" jsonschema:"ids of rollouts"`
		Group  string   `json:"group,omitempty" jsonschema:"name of a group, in place of ids"`
		Reason string   `json:"reason,omitempty"`
	}
	retryArgs struct {
		ID  string `json:"id" jsonschema:"id of an ended rollout"`
		Key string `json:"key,omitempty" jsonschema:"the same key submits it again once"`
	}
)

// eventPage is the answer of rollout_events.
type eventPage struct {
	Events []schema.Event `json:"events"`
	Next   string         `json:"next"`  // the after of the next call
	Ended  bool           `json:"ended"` // the last one is the result
}

// newTools returns the tools for a trainer: the operations of HTTP, with the same bounds.
func (s *Server) newTools(t *tenant) *mcp.Server {
	m := mcp.NewServer(&mcp.Implementation{Name: "turngate", Version: "v1"}, nil)
	reads := &mcp.ToolAnnotations{ReadOnlyHint: true}
	mcp.AddTool(m, &mcp.Tool{Name: "submit_rollout", Description: "Submit rollouts of one request, as a group."}, func(ctx context.Context, _ *mcp.CallToolRequest, in submitArgs) (*mcp.CallToolResult, any, error) {
		body := map[string]any{"request": in.Request, "n": cmp.Or(in.N, 1), "group": in.Group}
		return s.inner(ctx, t, s.submitGroup, inner{body: body, key: in.Key})
	})
	mcp.AddTool(m, &mcp.Tool{Name: "get_rollout", Description: "Return a rollout with its request, or its result after its end.", Annotations: reads}, func(ctx context.Context, _ *mcp.CallToolRequest, in idArgs) (*mcp.CallToolResult, any, error) {
		return s.inner(ctx, t, s.get, inner{id: in.ID})
	})
	mcp.AddTool(m, &mcp.Tool{Name: "list_rollouts", Description: "List rollouts: those that wait, the oldest first, then the others, the newest first.", Annotations: reads}, func(ctx context.Context, _ *mcp.CallToolRequest, in listArgs) (*mcp.CallToolResult, any, error) {
		q := url.Values{}
		for name, value := range map[string]string{"status": in.Status, "group": in.Group, "task": in.Task, "label": in.Label, "cursor": in.Cursor} {
			if value != "" {
				q.Set(name, value)
			}
		}
		if in.Limit != 0 {
			q.Set("limit", strconv.Itoa(in.Limit))
		}
		return s.inner(ctx, t, s.list, inner{query: q})
	})
	mcp.AddTool(m, &mcp.Tool{Name: "rollout_events", Description: "Return events of a rollout, a bounded number.", Annotations: reads}, func(ctx context.Context, _ *mcp.CallToolRequest, in eventsArgs) (*mcp.CallToolResult, any, error) {
		out, err := s.someEvents(ctx, t, in)
		return nil, out, s.told(err, t)
	})
	mcp.AddTool(m, &mcp.Tool{Name: "cancel_rollouts", Description: "End rollouts. Each still gets a result."}, func(ctx context.Context, _ *mcp.CallToolRequest, in cancelArgs) (*mcp.CallToolResult, any, error) {
		return s.inner(ctx, t, s.cancel, inner{body: map[string]any{"ids": in.IDs, "group": in.Group, "reason": in.Reason}})
	})
	mcp.AddTool(m, &mcp.Tool{Name: "retry_rollout", Description: "Submit the request of an ended rollout again, under a new id."}, func(ctx context.Context, _ *mcp.CallToolRequest, in retryArgs) (*mcp.CallToolResult, any, error) {
		return s.inner(ctx, t, s.retry, inner{id: in.ID, key: in.Key})
	})
	return m
}

// inner is a request of a tool to an operation of HTTP.
type inner struct {
	id, key string
	query   url.Values
	body    any
}

// inner carries out a request as an operation of HTTP does.
func (s *Server) inner(ctx context.Context, t *tenant, do handler, in inner) (*mcp.CallToolResult, any, error) {
	data, err := json.Marshal(in.body)
	if err != nil {
		return nil, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/?"+in.query.Encode(), bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if in.key != "" {
		r.Header.Set("Idempotency-Key", in.key)
	}
	r.SetPathValue("id", in.id)
	w := &captured{header: http.Header{}}
	if err := do(w, r, t); err != nil {
		return nil, nil, s.told(err, t)
	}
	return nil, json.RawMessage(bytes.TrimSpace(w.body.Bytes())), nil
}

// captured keeps an answer.
type captured struct {
	header http.Header
	body   bytes.Buffer
}

func (c *captured) Header() http.Header         { return c.header }
func (c *captured) WriteHeader(int)             {}
func (c *captured) Write(p []byte) (int, error) { return c.body.Write(p) }

// told returns an error as the client is told it.
func (s *Server) told(err error, t *tenant) error {
	if err == nil {
		return nil
	}
	p, inside := problemOf(err)
	if inside {
		s.config.Log.Warn().Err(err).Str("trainer", t.name).Msg("a tool of a trainer failed")
	}
	return p
}

// someEvents returns events of a rollout, until there are as many as are wanted, or its
// result, or the wait is over.
func (s *Server) someEvents(ctx context.Context, t *tenant, in eventsArgs) (*eventPage, error) {
	limit, wait := in.Limit, in.Wait
	if limit == 0 {
		limit = eventsLimit
	}
	if wait == 0 {
		wait = eventsWait
	}
	if limit < 1 || limit > maxEvents {
		return nil, invalidField("limit", strconv.Itoa(in.Limit), "want 1 to "+strconv.Itoa(maxEvents))
	}
	if wait < 1 || wait > maxEventsWait {
		return nil, invalidField("wait", strconv.Itoa(in.Wait), "want 1 to "+strconv.Itoa(maxEventsWait))
	}
	origin, after, err := eventAfter("after", in.After)
	if err != nil {
		return nil, err
	}
	one, err := s.eventsOf(ctx, t, in.ID)
	if err != nil {
		return nil, err
	}
	within, stop := context.WithTimeout(ctx, time.Duration(wait)*time.Second)
	defer stop()
	out, size := &eventPage{Events: []schema.Event{}, Next: in.After}, 0
	err = s.events.Watch(within, one.ID, recorded.Listener{
		Origin: origin, After: after,
		Begin: func(of string, _ uint64) { origin = of },
		Event: func(n uint64, e *schema.Event) {
			if len(out.Events) == limit || size > maxEventBytes {
				return
			}
			if data, err := json.Marshal(e); err == nil {
				size += len(data)
			}
			out.Events, out.Ended = append(out.Events, *e), e.Type == schema.EventResult
			if n > 0 {
				out.Next = origin + "." + strconv.FormatUint(n, 10)
			}
			if len(out.Events) == limit || size > maxEventBytes {
				stop()
			}
		},
	})
	if within.Err() != nil && ctx.Err() == nil {
		err = nil
	}
	return out, err
}

// eventsOf returns the rollout of which events are wanted.
func (s *Server) eventsOf(ctx context.Context, t *tenant, id string) (*recorded.Rollout, error) {
	if s.events == nil {
		return nil, problemf(http.StatusNotImplemented, schema.CodeUnsupported, "this front shows no events: it was started without --events")
	}
	l, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	return l.find(ctx, t, id, true)
}

// eventAfter reads the id of an event.
func eventAfter(field, text string) (origin string, after uint64, err error) {
	if text == "" {
		return "", 0, nil
	}
	origin, number, _ := strings.Cut(text, ".")
	if after, err = strconv.ParseUint(number, 10, 64); err != nil {
		return "", 0, invalidField(field, text, "want the id of an event")
	}
	return origin, after, nil
}
