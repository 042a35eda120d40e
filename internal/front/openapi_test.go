package front

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

var update = flag.Bool("update", false, "write the schemas of openapi.json anew") //nolint:gochecknoglobals // a flag

// object is a JSON object in the order of its text.
type object = map[string]any

// components returns the schemas of the messages and of the front's own bodies, made of the
// Go types.
func components(t *testing.T) object {
	t.Helper()
	numbers := &jsonschema.Schema{Type: "array", Items: &jsonschema.Schema{Type: "number"}}
	options := &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[schema.TokenIDs](): {Type: "array", Items: &jsonschema.Schema{Type: "integer"}},
		reflect.TypeFor[schema.Logprobs](): numbers,
		reflect.TypeFor[json.RawMessage](): {},
	}}
	out := object{}
	for name, of := range map[string]reflect.Type{
		"Request": reflect.TypeFor[schema.Request](), "Result": reflect.TypeFor[schema.Result](), "Event": reflect.TypeFor[schema.Event](), "Fleet": reflect.TypeFor[schema.Fleet](),
		"Submission": reflect.TypeFor[submission](), "GroupSubmission": reflect.TypeFor[groupSubmission](), "Submitted": reflect.TypeFor[submitted](),
		"Page": reflect.TypeFor[page](), "Rollout": reflect.TypeFor[detail](), "Cancellation": reflect.TypeFor[cancellation](), "Cancelled": reflect.TypeFor[cancelled](),
		"ResultPage": reflect.TypeFor[resultPage](), "Stored": reflect.TypeFor[stored](), "Frame": reflect.TypeFor[frame](), "Problem": reflect.TypeFor[problem](),
	} {
		s, err := jsonschema.ForType(of, options)
		harness.Must(t, err)
		data, err := json.Marshal(s)
		harness.Must(t, err)
		var value object
		harness.Must(t, json.Unmarshal(data, &value))
		out[name] = value
	}
	refer(out)
	for _, name := range []string{"Request", "Submission", "GroupSubmission", "Cancellation"} {
		nullable(out[name])
	}
	bound(out)
	out["RolloutEvent"] = eventSchema("Event", eventNames())
	out["ResultEvent"] = eventSchema("Result", []string{"result"})
	return out
}

// nullable adds null to the types of fields that may be left out, and of the values of maps: the
// front reads it as no value.
func nullable(of any) {
	s, ok := of.(object)
	if !ok {
		return // true: any value
	}
	add := func(of any) {
		if field, ok := of.(object); ok {
			if kind, ok := field["type"].(string); ok {
				field["type"] = []any{"null", kind}
			}
		}
	}
	required, _ := s["required"].([]any)
	properties, _ := s["properties"].(object)
	for name, field := range properties {
		nullable(field)
		if !slices.Contains(required, any(name)) {
			add(field)
		}
	}
	nullable(s["additionalProperties"])
	add(s["additionalProperties"])
	nullable(s["items"])
}

// eventSchema describes one server-sent event, in the form of OpenAPI 3.2.
func eventSchema(of string, names []string) object {
	data := object{"type": "string", "contentMediaType": "application/json", "contentSchema": object{"$ref": "#/components/schemas/" + of}}
	return object{"type": "object", "required": []any{"event", "data"}, "properties": object{
		"event": object{"type": "string", "enum": names}, "data": data,
		"id": object{"type": "string", "description": "For Last-Event-ID. Without one the place at which a client goes on stays."},
	}}
}

func eventNames() (out []string) {
	for _, e := range []schema.EventType{schema.EventPhase, schema.EventStep, schema.EventLLM, schema.EventLog, schema.EventWait, schema.EventNet, schema.EventVerify, schema.EventShell, schema.EventResult} {
		out = append(out, string(e))
	}
	return out
}

// Patterns of the rules of package schema.
const (
	idPattern    = "^[a-z0-9_]{1,20}-[A-Za-z0-9_-]+$"
	tokenPattern = "^[A-Za-z0-9_-]{1,40}$"
	emptyOr      = "^([A-Za-z0-9_-]{1,40})?$"
)

// bound adds the bounds of the front, and of package schema for the parts of a request that
// most clients send. TestTheBoundsAreTheServers compares them with the answers.
func bound(all object) {
	at := func(name string, path ...string) object {
		s := all[name].(object)
		for _, field := range path {
			s = s["properties"].(object)[field].(object)
		}
		return s
	}
	text := func(s object, least, most int) { s["minLength"], s["maxLength"] = least, most }
	number := func(s object, least, most int) { s["minimum"], s["maximum"] = least, most }
	id := func(s object) { s["pattern"], s["maxLength"] = idPattern, 40 }

	requests := at("Submission", "requests")
	requests["minItems"], requests["maxItems"] = 1, maxSubmit
	number(at("GroupSubmission", "n"), 1, maxSubmit)
	text(at("GroupSubmission", "group"), 0, 256)
	for _, name := range []string{"Submission", "GroupSubmission"} {
		number(at(name, "lane"), 0, subjects.Lanes-1)
	}
	at("GroupSubmission")["properties"].(object)["request"] = object{
		"allOf":       []any{object{"$ref": "#/components/schemas/Request"}},
		"description": "Without id, group and index, which the group gives to each rollout.",
		"properties":  object{"id": object{"maxLength": 0}, "group": object{"maxLength": 0}, "index": object{"enum": []any{0, nil}}},
	}

	c := at("Cancellation")
	at("Cancellation", "ids")["maxItems"] = maxCancelled
	text(at("Cancellation", "reason"), 0, maxReason)
	number(at("Cancellation", "wait_ms"), 0, cancelMost)
	id(at("Cancellation", "ids")["items"].(object))
	c["description"] = "Exactly one of ids, group and all selects the rollouts."
	c["oneOf"] = []any{
		object{"required": []any{"ids"}, "properties": object{"ids": object{"type": "array", "minItems": 1}}},
		object{"required": []any{"group"}, "properties": object{"group": object{"minLength": 1}}},
		object{"required": []any{"all"}, "properties": object{"all": object{"const": true}}},
	}

	text(at("Request", "group"), 0, 256)
	number(at("Request", "v"), 0, schema.Version)
	number(at("Request", "index"), 0, 1<<30)
	number(at("Request", "attempt_floor"), 0, 1<<30)
	number(at("Request", "max_attempts"), 0, 100)
	number(at("Request", "delay_ms"), 0, 30*24*3600*1000)
	at("Request", "id")["pattern"], at("Request", "id")["maxLength"] = "^([a-z0-9_]{1,20}-[A-Za-z0-9_-]+)?$", 40
	at("Request", "shard")["pattern"] = emptyOr
	at("Request", "mode")["enum"] = []any{nil, "", string(schema.ModeGate), string(schema.ModeProxy), string(schema.ModeBlack)}
	labels := at("Request", "labels")
	labels["maxProperties"], labels["propertyNames"] = 64, object{"minLength": 1, "maxLength": 256}
	text(labels["additionalProperties"].(object), 0, 64<<10)
	text(at("Request", "task", "name"), 1, 256)
	text(at("Request", "task", "instruction"), 0, 1<<20)
	at("Request", "task", "notes")["maxItems"] = schema.MaxNotes
	at("Request", "task", "bundle")["pattern"] = "^([0-9a-f]{64})?$"
	at("Request", "agent", "name")["pattern"] = tokenPattern
	at("Request", "sandbox", "backend")["pattern"] = tokenPattern
	at("Request", "setup")["maxItems"] = 256
	at("Request", "steps")["maxItems"] = 64
}

// refer replaces the schemas of requests and results inside others by references, and leaves
// out of a request the fields that a client need not send.
func refer(all object) {
	request := all["Request"].(object)
	properties := func(name string) object { return all[name].(object)["properties"].(object) }
	ref := func(name string) object { return object{"$ref": "#/components/schemas/" + name} }
	properties("Submission")["requests"] = object{"type": "array", "items": ref("Request")}
	properties("GroupSubmission")["request"] = ref("Request")
	properties("Rollout")["request"] = ref("Request")
	properties("Rollout")["result"] = ref("Result")
	properties("ResultPage")["results"] = object{"type": "array", "items": ref("Result")}
	properties("Event")["result"] = ref("Result")
	request["required"] = []any{"task", "agent", "sandbox"}
}

// TestTheSchemasAreThoseOfTheTypes compares the schemas in openapi.json with the Go types.
func TestTheSchemasAreThoseOfTheTypes(t *testing.T) {
	var file object
	harness.Must(t, json.Unmarshal(description, &file))
	file["components"].(object)["schemas"] = components(t)
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	harness.Must(t, enc.Encode(file))
	if bytes.Equal(want.Bytes(), description) {
		return
	}
	if *update {
		harness.Must(t, os.WriteFile("openapi.json", want.Bytes(), 0o644))
		return
	}
	t.Error("openapi.json differs from the types: go test ./internal/front -run TheSchemas -update")
}

// TestEachRouteIsDescribed compares the paths of openapi.json with the routes.
func TestEachRouteIsDescribed(t *testing.T) {
	var file struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			Security *[]any
		}
	}
	harness.Must(t, json.Unmarshal(description, &file))
	described := map[string]bool{}
	for path, operations := range file.Paths {
		for method, operation := range operations {
			if method != "parameters" {
				described[strings.ToUpper(method)+" "+path] = operation.Security == nil // else it needs no token
			}
		}
	}
	routed := map[string]bool{"GET /openapi.json": false, "GET /livez": false, "GET /readyz": false}
	for _, r := range new(Server).routes() {
		routed[r.method+" "+strings.ReplaceAll(r.path, "...", "")] = true
	}
	if !maps.Equal(described, routed) {
		t.Errorf("described (true: with a token):\n%v\nroutes:\n%v", described, routed)
	}
	if file.OpenAPI != "3.1.0" {
		t.Errorf("openapi: %q", file.OpenAPI)
	}
}

// operations has the schemas of the bodies in openapi.json. OpenAPI 3.1 uses JSON Schema.
type operations struct {
	mux     *http.ServeMux // finds the path of a request
	bodies  map[string]*jsonschema.Resolved
	answers map[string]*jsonschema.Resolved // by path and status
}

// described has the operations of openapi.json. Tests share them, since it takes long to
// resolve all schemas.
var described = sync.OnceValues(readDescription) //nolint:gochecknoglobals // read once

func readDescription() (*operations, error) {
	var file struct {
		Paths map[string]map[string]struct {
			RequestBody struct {
				Content map[string]struct{ Schema object }
			}
			Responses map[string]struct {
				Content map[string]struct{ Schema object }
			}
		}
		Components struct{ Schemas object }
	}
	if err := json.Unmarshal(description, &file); err != nil {
		return nil, err
	}
	resolve := func(schema object) (*jsonschema.Resolved, error) {
		whole := maps.Clone(schema)
		whole["$defs"] = file.Components.Schemas
		data, err := json.Marshal(whole)
		if err != nil {
			return nil, err
		}
		data = bytes.ReplaceAll(data, []byte("#/components/schemas/"), []byte("#/$defs/")) // the library resolves no others
		var s jsonschema.Schema
		if err := json.Unmarshal(data, &s); err != nil {
			return nil, err
		}
		return s.Resolve(nil)
	}
	var failed error
	keep := func(in map[string]*jsonschema.Resolved, name string, schema object) {
		resolved, err := resolve(schema)
		in[name], failed = resolved, errors.Join(failed, err)
	}
	o := &operations{mux: http.NewServeMux(), bodies: map[string]*jsonschema.Resolved{}, answers: map[string]*jsonschema.Resolved{}}
	for path, methods := range file.Paths {
		for method, operation := range methods {
			pattern := strings.ToUpper(method) + " " + strings.Replace(path, "{name}", "{name...}", 1)
			o.mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
			if body, ok := operation.RequestBody.Content["application/json"]; ok {
				keep(o.bodies, pattern, body.Schema)
			}
			for status, answer := range operation.Responses {
				for kind, body := range answer.Content {
					if kind == "application/json" || kind == "application/problem+json" {
						keep(o.answers, pattern+" "+status, body.Schema)
					}
				}
			}
		}
	}
	return o, failed
}

// check compares a request and its answer with the description.
func (o *operations) check(t *testing.T, r *http.Request, sent []byte, status int, kind string, got []byte) {
	t.Helper()
	_, pattern := o.mux.Handler(r)
	if pattern == "" {
		return // there is no such operation
	}
	valid := func(what string, s *jsonschema.Resolved, data []byte) {
		t.Helper()
		var value any
		if err := json.Unmarshal(data, &value); err != nil {
			t.Errorf("%s of %s: %v", what, pattern, err)
		} else if err := s.Validate(value); err != nil {
			t.Errorf("%s of %s: %v\n%s", what, pattern, err, data)
		}
	}
	if body := o.bodies[pattern]; body != nil && status < 400 {
		valid("the body", body, sent)
	}
	answer := o.answers[pattern+" "+strconv.Itoa(status)]
	if answer == nil {
		if kind == "application/json" || kind == "application/problem+json" {
			t.Errorf("an answer of %s with status %d is not described: %s", pattern, status, got)
		}
		return
	}
	valid("the answer", answer, got)
}

// TestTheBoundsAreTheServers sends bodies at the bounds and beyond them. The description refuses
// those that the front refuses, and no others.
func TestTheBoundsAreTheServers(t *testing.T) {
	b := newBench(t)
	request := func(change object) object {
		q := object{"task": object{"name": "hello", "instruction": "x"}, "agent": object{"name": "mini"}, "sandbox": object{"backend": "local"}}
		maps.Copy(q, change)
		return q
	}
	long := func(n int) string { return strings.Repeat("x", n) }
	list := func(n int, of any) (out []any) {
		for range n {
			out = append(out, of)
		}
		return out
	}
	labels := object{}
	for i := range 65 {
		labels[strconv.Itoa(i)] = ""
	}
	fewer := maps.Clone(labels)
	delete(fewer, "0")
	of := func(change object) object { return object{"requests": []any{request(change)}} }
	for name, tt := range map[string]struct {
		path  string
		body  any
		valid bool
	}{
		"no requests":         {"/v1/rollouts", object{"requests": []any{}}, false},
		"null requests":       {"/v1/rollouts", object{"requests": nil}, false},
		"too many requests":   {"/v1/rollouts", object{"requests": list(maxSubmit+1, request(nil))}, false},
		"a lane":              {"/v1/rollouts", object{"requests": []any{request(nil)}, "lane": subjects.Lanes - 1}, true},
		"a wrong lane":        {"/v1/rollouts", object{"requests": []any{request(nil)}, "lane": subjects.Lanes}, false},
		"another field":       {"/v1/rollouts", object{"requests": []any{request(nil)}, "more": 1}, false},
		"an id":               {"/v1/rollouts", of(object{"id": "alpha-1"}), true},
		"a long id":           {"/v1/rollouts", of(object{"id": "alpha-" + long(40)}), false},
		"an id of no trainer": {"/v1/rollouts", of(object{"id": "alpha"}), false},
		"a group":             {"/v1/rollouts", of(object{"group": long(256)}), true},
		"a long group":        {"/v1/rollouts", of(object{"group": long(257)}), false},
		"a negative index":    {"/v1/rollouts", of(object{"index": -1}), false},
		"a later version":     {"/v1/rollouts", of(object{"v": schema.Version + 1}), false},
		"attempts":            {"/v1/rollouts", of(object{"max_attempts": 100}), true},
		"many attempts":       {"/v1/rollouts", of(object{"max_attempts": 101}), false},
		"a long delay":        {"/v1/rollouts", of(object{"delay_ms": 30*24*3600*1000 + 1}), false},
		"a shard":             {"/v1/rollouts", of(object{"shard": long(40)}), true},
		"a long shard":        {"/v1/rollouts", of(object{"shard": long(41)}), false},
		"a wrong mode":        {"/v1/rollouts", of(object{"mode": "sideways"}), false},
		"labels":              {"/v1/rollouts", of(object{"labels": fewer}), true},
		"many labels":         {"/v1/rollouts", of(object{"labels": labels}), false},
		"an empty label":      {"/v1/rollouts", of(object{"labels": object{"": "x"}}), false},
		"a long label":        {"/v1/rollouts", of(object{"labels": object{long(257): "x"}}), false},
		"a label's value":     {"/v1/rollouts", of(object{"labels": object{"x": long(64<<10 + 1)}}), false},
		"no task":             {"/v1/rollouts", of(object{"task": object{"name": "", "instruction": "x"}}), false},
		"a long task":         {"/v1/rollouts", of(object{"task": object{"name": long(257), "instruction": "x"}}), false},
		"a long instruction":  {"/v1/rollouts", of(object{"task": object{"name": "x", "instruction": long(1<<20 + 1)}}), false},
		"a wrong bundle":      {"/v1/rollouts", of(object{"task": object{"name": "x", "instruction": "x", "bundle": "x"}}), false},
		"many notes":          {"/v1/rollouts", of(object{"task": object{"name": "x", "instruction": "x", "notes": list(schema.MaxNotes+1, "x")}}), false},
		"a wrong agent":       {"/v1/rollouts", of(object{"agent": object{"name": "a b"}}), false},
		"a wrong sandbox":     {"/v1/rollouts", of(object{"sandbox": object{"backend": ""}}), false},
		"long setup":          {"/v1/rollouts", of(object{"setup": list(257, object{"run": "true"})}), false},
		"many steps":          {"/v1/rollouts", of(object{"steps": list(65, object{"name": "a", "instruction": "x"})}), false},
		"none of a group":     {"/v1/groups", object{"n": 0, "request": request(nil)}, false},
		"one of a group":      {"/v1/groups", object{"n": 1, "group": long(256), "request": request(nil)}, true},
		"most of a group":     {"/v1/groups", object{"n": maxSubmit, "request": request(nil)}, true},
		"too many of a group": {"/v1/groups", object{"n": maxSubmit + 1, "request": request(nil)}, false},
		"a group's long name": {"/v1/groups", object{"n": 1, "group": long(257), "request": request(nil)}, false},
		"a group with an id":  {"/v1/groups", object{"n": 1, "request": request(object{"id": "alpha-2"})}, false},
		"a group of a group":  {"/v1/groups", object{"n": 1, "request": request(object{"group": "x"})}, false},
		"null is no value":    {"/v1/groups", object{"n": 1, "group": nil, "request": request(object{"index": nil, "labels": object{"x": nil}, "mode": nil, "limits": nil})}, true},
		"a group's index":     {"/v1/groups", object{"n": 1, "request": request(object{"index": 1})}, false},
		"cancel nothing":      {"/v1/cancel", object{}, false},
		"cancel no ids":       {"/v1/cancel", object{"ids": []any{}}, false},
		"cancel two kinds":    {"/v1/cancel", object{"ids": []any{"alpha-1"}, "group": "x"}, false},
		"cancel not all":      {"/v1/cancel", object{"all": false}, false},
		"cancel a group":      {"/v1/cancel", object{"group": "x", "ids": []any{}, "wait_ms": 0}, true},
		"cancel many":         {"/v1/cancel", object{"ids": list(maxCancelled+1, "alpha-1")}, false},
		"a long reason":       {"/v1/cancel", object{"group": "x", "reason": long(maxReason + 1)}, false},
		"a long wait":         {"/v1/cancel", object{"group": "x", "wait_ms": cancelMost + 1}, false},
		"a negative wait":     {"/v1/cancel", object{"group": "x", "wait_ms": -1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := b.request(http.MethodPost, tt.path, alphaToken, tt.body)
			_, pattern := b.described.mux.Handler(r)
			data, err := json.Marshal(tt.body)
			harness.Must(t, err)
			var value any
			harness.Must(t, json.Unmarshal(data, &value))
			if err := b.described.bodies[pattern].Validate(value); (err == nil) != tt.valid {
				t.Errorf("the description: %v", err)
			}
			answer, err := http.DefaultClient.Do(r)
			harness.Must(t, err)
			defer answer.Body.Close()
			if accepted := answer.StatusCode < 300; accepted != tt.valid || !accepted && answer.StatusCode != http.StatusBadRequest {
				t.Errorf("the front answers with %d", answer.StatusCode)
			}
		})
	}
}
