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
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
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
	return out
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
	if answer == nil && status >= 400 {
		answer = o.answers[pattern+" default"]
	}
	if answer == nil {
		if kind == "application/json" || kind == "application/problem+json" {
			t.Errorf("an answer of %s with status %d is not described: %s", pattern, status, got)
		}
		return
	}
	valid("the answer", answer, got)
}
