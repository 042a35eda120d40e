// Package clients checks the parts of the clients in other languages that are
// made from package schema: the tables of docs/messages.md, and the types of
// the Python client.
package clients_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files that are made from package schema") //nolint:gochecknoglobals // a flag

// made compares a file with its expected content, or writes it.
func made(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what package schema says; run go test ./clients -update (%v)", path, err)
	}
}

func TestMessagesAreDocumented(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# Messages, field by field

This file is made from package [schema](../schema) by ` + "`go test ./clients -update`" + `; [protocol.md](protocol.md) explains the messages. A body is one msgpack map. An absent field has its
zero value (0, false, empty), which means the default where there is one. *always*: the field is sent even with its zero value. Unknown fields are ignored. Bounds are those that
Validate checks; a worker refuses a message beyond them with an error that names the field.

Types: **text** is a msgpack str; **int**, **float** and **bool** are msgpack's own, and a float may be an int; **raw JSON** is a bin with JSON text; **bytes** is a bin; **token ids** and **log-probs** are a bin of
little-endian int32 and float32 values; **T?** may be nil; **list of T** is an array; **map of T** is a map with text keys.

`)
	all := kinds(t)
	of := func(m any) int {
		return slices.IndexFunc(all, func(k kind) bool { return k.Type == reflect.TypeOf(m) })
	}
	var order []kind // the messages, then their parts
	for _, m := range messages() {
		order = append(order, all[of(m)])
	}
	for _, k := range all {
		if !slices.ContainsFunc(order, func(o kind) bool { return o.Name == k.Name }) {
			order = append(order, k)
		}
	}
	for _, k := range order {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n| field | type | required | bound or values | default | meaning |\n|---|---|---|---|---|---|\n", k.Name, sentence(k))
		for _, f := range k.Fields {
			required := ""
			switch {
			case f.Required:
				required = "yes"
			case f.Keep:
				required = "always"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", f.Name, wireType(f.Type), required, cell(f.boundText(f.Type)), cell(code(f.Default)), cell(meaning(f.Doc, f.Name)))
		}
		b.WriteString("\n")
	}
	made(t, "../docs/messages.md", bytes.TrimRight(b.Bytes(), "\n"))
}

func sentence(k kind) string {
	s := strings.TrimPrefix(k.Doc, k.Name+" ")
	if s == k.Doc {
		return s
	}
	return "`" + k.Name + "` " + s
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// meaning is the comment of a field and the unit of its name, if the comment does
// not have it.
func meaning(doc, name string) string {
	unit := ""
	switch {
	case strings.HasSuffix(name, "_ms") || name == "ms":
		unit = "milliseconds"
	case strings.HasSuffix(name, "_bytes"):
		unit = "bytes"
	}
	switch {
	case unit == "" || strings.Contains(doc, unit):
		return doc
	case doc == "":
		return unit
	case strings.HasSuffix(doc, "."):
		return doc + " In " + unit + "."
	default:
		return doc + "; in " + unit
	}
}

func (b *bound) boundText(rt reflect.Type) string {
	var parts []string
	if b.High != "" {
		parts = append(parts, b.Low+" to "+b.High)
	}
	if len(b.OneOf) > 0 {
		parts = append(parts, "one of `"+strings.Join(b.OneOf, "`, `")+"`")
	}
	if b.Form != "" {
		parts = append(parts, b.Form)
	}
	if b.Most > 0 {
		of := "bytes"
		if rt.Kind() == reflect.Map || rt.Kind() == reflect.Slice && rt.Elem().Kind() != reflect.Uint8 {
			of = "entries"
		}
		parts = append(parts, fmt.Sprintf("at most %d %s", b.Most, of))
	}
	if b.Each > 0 {
		parts = append(parts, fmt.Sprintf("each at most %d bytes", b.Each))
	}
	return strings.Join(parts, "; ")
}

func wireType(rt reflect.Type) string {
	switch rt {
	case rawJSON:
		return "raw JSON"
	case tokenIDs:
		return "token ids"
	case logprobs:
		return "log-probs"
	}
	switch rt.Kind() {
	case reflect.Pointer:
		return wireType(rt.Elem()) + "?"
	case reflect.Slice:
		if rt.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "list of " + wireType(rt.Elem())
	case reflect.Map:
		return "map of " + wireType(rt.Elem())
	case reflect.Struct:
		return "[" + rt.Name() + "](#" + strings.ToLower(rt.Name()) + ")"
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "bool"
	case reflect.Float64:
		return "float"
	default:
		return "int"
	}
}
