package clients_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

// bound is the range of values of a field, found by asking Validate.
type bound struct {
	Required  bool
	Low, High string   // of a number
	Most      int      // bytes of a text, entries of a list; 0: no bound was found
	Each      int      // bytes of each text of a list or map
	OneOf     []string // an enumeration
	Form      string   // in words
}

// field is one member of a message on the wire.
type field struct {
	Go, Name string
	Type     reflect.Type
	Doc      string
	Keep     bool // sent even if it has its zero value
	Default  string
	bound
}

// kind is one struct of package schema.
type kind struct {
	Name   string
	Type   reflect.Type
	Doc    string
	Fields []field
}

// messages lists the types of bodies, in the order of the documentation.
func messages() []any {
	return []any{
		schema.Request{}, schema.Call{}, schema.Reply{}, schema.Delta{}, schema.Fault{}, schema.ToolCall{}, schema.ToolResult{},
		schema.Verification{}, schema.Verdict{}, schema.Operation{}, schema.OperationResult{}, schema.Result{},
		schema.Hint{}, schema.State{}, schema.Cancel{}, schema.Hold{}, schema.Opened{}, schema.Attach{}, schema.Attached{}, schema.Process{}, schema.Fleet{}, schema.Event{}, schema.TranscriptLine{}, schema.Presence{}, schema.Control{}, schema.Machine{}, schema.LineOpen{}, schema.LineEnd{}, schema.Enroll{}, schema.Enrolled{},
	}
}

// kinds lists the messages and all structs inside them, each before its first
// user.
func kinds(t *testing.T) []kind {
	t.Helper()
	docs := sourceDocs(t)
	var out []kind
	var walk func(reflect.Type)
	seen := map[reflect.Type]bool{}
	walk = func(rt reflect.Type) {
		for rt.Kind() == reflect.Pointer || rt.Kind() == reflect.Slice || rt.Kind() == reflect.Map {
			rt = rt.Elem()
		}
		if rt.Kind() != reflect.Struct || seen[rt] {
			return
		}
		seen[rt] = true
		k := kind{Name: rt.Name(), Type: rt, Doc: docs[rt.Name()]}
		for i := range rt.NumField() {
			f := rt.Field(i)
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			walk(f.Type)
			k.Fields = append(k.Fields, field{Go: f.Name, Name: name, Type: f.Type, Doc: docs[rt.Name()+"."+f.Name], Keep: options == ""})
		}
		for i := range k.Fields {
			k.Fields[i].Doc = wireNames(k.Fields[i].Doc, &k)
		}
		k.Doc = wireNames(k.Doc, &k)
		out = append(out, k)
	}
	for _, m := range messages() {
		walk(reflect.TypeOf(m))
	}
	found := probeAll(t)
	for i := range out {
		for j := range out[i].Fields {
			f := &out[i].Fields[j]
			key := out[i].Name + "." + f.Name
			f.bound, f.Default = found.bounds[key], found.defaults[key]
		}
	}
	return out
}

// sourceDocs returns the comments of the types of package schema, and of their
// fields under Type.Field.
func sourceDocs(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob("../schema/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				spec, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				out[spec.Name.Name] = words(spec.Doc.Text() + g.Doc.Text())
				if st, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range st.Fields.List {
						for _, n := range f.Names {
							out[spec.Name.Name+"."+n.Name] = words(f.Doc.Text() + " " + f.Comment.Text())
						}
					}
				}
			}
		}
	}
	return out
}

// wireNames replaces the Go names of fields in a comment. A name of several words
// is replaced anywhere, any other only at the beginning.
func wireNames(doc string, k *kind) string {
	for _, f := range k.Fields {
		name := regexp.QuoteMeta(f.Go)
		if f.Go == k.Name {
			continue
		}
		if strings.Contains(f.Name, "_") {
			doc = regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(doc, f.Name)
		} else {
			doc = regexp.MustCompile(`^`+name+`\b( (and|is|are|has|names|describes|lists|counts|means|tells|holds|says|copies|runs|kinds?|replaces|ends|must|describe)\b)`).ReplaceAllString(doc, f.Name+"$1")
		}
	}
	return doc
}

func words(s string) string { return strings.Join(strings.Fields(s), " ") }

// found has the results of the probes, under Type.field.
type found struct {
	bounds   map[string]bound
	optional map[string]bool // a zero value was accepted somewhere
	defaults map[string]string
}

// probeAll sets each field of the golden messages to values that are surely
// wrong and reads the bounds from the errors.
func probeAll(t *testing.T) found {
	t.Helper()
	out := found{map[string]bound{}, map[string]bool{}, map[string]string{}}
	for _, m := range goldenMessages(t) {
		out.probe(m, reflect.ValueOf(m).Elem())
	}
	for key, b := range out.bounds {
		b.Required = b.Required && !out.optional[key]
		out.bounds[key] = b
	}
	r := schema.Request{
		Healthcheck: &schema.Healthcheck{}, Verify: &schema.Verify{Separate: &schema.SandboxChoice{}}, Steps: []schema.Step{{}},
		Sandbox: schema.SandboxChoice{Build: &schema.Build{}, Services: []schema.Service{{}}, Container: schema.Container{Health: &schema.Probe{}}},
	}
	full := r.WithDefaults()
	check := r.Healthcheck.WithDefaults()
	full.Healthcheck = &check
	full.Verify.Separate, full.Sandbox.Services[0].Build = nil, nil // they default to other parts of the request
	defaults(reflect.ValueOf(full), out.defaults)
	return out
}

func goldenMessages(t *testing.T) []schema.Message {
	t.Helper()
	var out []schema.Message
	files, err := filepath.Glob("../schema/testdata/*.msgpack")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden vectors: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := messageOf(strings.TrimSuffix(filepath.Base(file), ".msgpack"))
		if m == nil {
			t.Fatalf("%s: no message of this name is in messages()", file)
		}
		if err := schema.Decode(data, m); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, m)
	}
	return out
}

// messageOf returns a new message for a golden vector, by the name of its file.
func messageOf(name string) schema.Message {
	var best reflect.Type
	for _, m := range messages() {
		rt := reflect.TypeOf(m)
		file := strings.ToLower(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(rt.Name(), "${1}_$2"))
		if (name == file || strings.HasPrefix(name, file+"_")) && (best == nil || len(rt.Name()) > len(best.Name())) {
			best = rt
		}
	}
	if best == nil {
		return nil
	}
	m, _ := reflect.New(best).Interface().(schema.Message)
	return m
}

func defaults(v reflect.Value, out map[string]string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			defaults(v.Elem(), out)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			for i := range v.Len() {
				defaults(v.Index(i), out)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			f := v.Field(i)
			switch f.Kind() {
			case reflect.Pointer, reflect.Slice, reflect.Struct:
				defaults(f, out)
			default:
				if !f.IsZero() && name != "-" {
					out[v.Type().Name()+"."+name] = fmt.Sprint(f.Interface())
				}
			}
		}
	}
}

// probe tries wrong values in every field of v, which is a part of m.
func (o *found) probe(m schema.Message, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			o.probe(m, v.Elem())
		}
		return
	case reflect.Slice:
		for i := 0; v.Type().Elem().Kind() == reflect.Struct && i < v.Len(); i++ {
			o.probe(m, v.Index(i))
		}
		return
	case reflect.Struct:
	default:
		return
	}
	rt, checked, accepted := v.Type(), false, []string{}
	for i := range rt.NumField() {
		name, _, _ := strings.Cut(rt.Field(i).Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		f := v.Field(i)
		o.probe(m, f)
		key := rt.Name() + "." + name
		b := o.bounds[key]
		for _, wrong := range wrongValues(f.Type()) {
			was := reflect.New(f.Type()).Elem()
			was.Set(f)
			f.Set(wrong)
			var bad *schema.InvalidError
			switch err := schema.Validate(m); {
			case errors.As(err, &bad) && names(bad.Field, name):
				b.learn(wrong, bad)
				checked = true
			case err == nil && wrong.IsZero():
				accepted = append(accepted, key)
			}
			f.Set(was)
		}
		o.bounds[key] = b
	}
	for _, key := range accepted {
		o.optional[key] = o.optional[key] || checked // Validate does not look into every part of every message
	}
}

// names reports whether the path of an error ends with a field, or with an entry
// of it.
func names(path, name string) bool {
	last := path[strings.LastIndexByte(path, '.')+1:]
	base, _, _ := strings.Cut(last, "[")
	return base == name
}

func wrongValues(rt reflect.Type) []reflect.Value {
	long := strings.Repeat("a", 1<<20+1)
	var all []any
	switch rt.Kind() {
	case reflect.String:
		all = []any{"", "\tno such value", long}
	case reflect.Int, reflect.Int64:
		all = []any{0, -1 << 40, 1 << 60}
	case reflect.Float64:
		all = []any{-1e300, 1e300}
	case reflect.Map:
		big := reflect.MakeMap(rt)
		for i := range 1000 {
			big.SetMapIndex(reflect.ValueOf("a"+strconv.Itoa(i)).Convert(rt.Key()), reflect.Zero(rt.Elem()))
		}
		out := []reflect.Value{big}
		if rt.Elem().Kind() == reflect.String {
			one := reflect.MakeMap(rt)
			one.SetMapIndex(reflect.ValueOf("a").Convert(rt.Key()), reflect.ValueOf(long).Convert(rt.Elem()))
			out = append(out, one)
		}
		return out
	case reflect.Slice:
		out := []reflect.Value{reflect.Zero(rt), reflect.MakeSlice(rt, 100_002, 100_002)}
		if rt.Elem().Kind() == reflect.String {
			one := reflect.MakeSlice(rt, 1, 1)
			one.Index(0).SetString(long)
			out = append(out, one)
		}
		return out
	}
	out := make([]reflect.Value, len(all))
	for i, v := range all {
		out[i] = reflect.ValueOf(v).Convert(rt)
	}
	return out
}

// learn reads a bound from an error about a wrong value.
func (b *bound) learn(wrong reflect.Value, e *schema.InvalidError) {
	zero := wrong.IsZero()
	if zero {
		b.Required = true
	}
	switch m := regexp.MustCompile(`^want (-?[0-9.]+) to (-?[0-9.e+]+)$|^at most (\d+)( bytes)?$|^want one of (.*)$`).FindStringSubmatch(e.Want); {
	case m == nil:
		if !zero || b.Form == "" {
			if want := strings.TrimPrefix(e.Want, "want "); want != "must not be empty" {
				b.Form = want
			}
		}
	case m[1] != "":
		b.Low, b.High = m[1], m[2]
	case m[3] != "":
		n, _ := strconv.Atoi(m[3])
		if strings.Contains(e.Field[strings.LastIndexByte(e.Field, '.')+1:], "[") {
			b.Each = n
		} else {
			b.Most = n
		}
	default:
		b.OneOf = strings.Split(m[5], ", ")
	}
	slices.Sort(b.OneOf)
}

var (
	rawJSON  = reflect.TypeFor[json.RawMessage]() //nolint:gochecknoglobals // a type
	tokenIDs = reflect.TypeFor[schema.TokenIDs]() //nolint:gochecknoglobals // a type
	logprobs = reflect.TypeFor[schema.Logprobs]() //nolint:gochecknoglobals // a type
)
