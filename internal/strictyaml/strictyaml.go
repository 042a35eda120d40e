// Package strictyaml reads YAML that a person has written. Its errors name the line and
// the field, and for an unknown field the known ones.
package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/turngate/turngate/schema"
)

// maxErrors bounds the errors of one file.
const maxErrors = 20

// Decode reads a document into the value to which v points. A field that the value does
// not have is an error.
func Decode(data []byte, v any) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return err
	}
	if len(doc.Content) == 0 { // an empty document
		return nil
	}
	var wrong []error
	check(doc.Content[0], reflect.TypeOf(v).Elem(), "", &wrong)
	if len(wrong) > 0 {
		return errors.Join(wrong[:min(len(wrong), maxErrors)]...)
	}
	return doc.Decode(v)
}

// check compares a node with the type that it is read into. The path is that of the
// field; empty: the document.
func check(n *yaml.Node, t reflect.Type, path string, wrong *[]error) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Interface || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return
	}
	want := wanted(n, t)
	if want != "" {
		*wrong = append(*wrong, fmt.Errorf("line %d: %s: %s is not valid: want %s", n.Line, named(path), given(n), want))
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, fields := n.Content[i], fieldsOf(t)
			if key.ShortTag() == mergeTag {
				checkMerged(n.Content[i+1], t, path, wrong)
				continue
			}
			field, ok := fields.types[key.Value]
			if !ok {
				*wrong = append(*wrong, fmt.Errorf("line %d: %s is no field: want %s", key.Line, schema.Clip(joined(path, key.Value), 100), strings.Join(fields.names, ", ")))
				continue
			}
			check(n.Content[i+1], field, joined(path, key.Value), wrong)
		}
	case reflect.Map:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if key := n.Content[i]; key.ShortTag() == mergeTag {
				checkMerged(n.Content[i+1], t, path, wrong)
			} else {
				check(n.Content[i+1], t.Elem(), joined(path, key.Value), wrong)
			}
		}
	case reflect.Slice:
		for i, item := range n.Content {
			check(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i), wrong)
		}
	}
}

// mergeTag is the tag of the key <<. Its value has further fields, or is a list of such values.
// maxMerges bounds how deep they contain each other: an alias may lead back.
const (
	mergeTag  = "!!merge"
	maxMerges = 3
)

func checkMerged(n *yaml.Node, t reflect.Type, path string, wrong *[]error) {
	path = joined(path, "<<")
	if strings.Count(path, "<<") > maxMerges {
		*wrong = append(*wrong, fmt.Errorf("line %d: %s is not valid: want at most %d << inside each other", n.Line, named(path), maxMerges))
		return
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	for _, one := range list {
		check(one, t, path, wrong)
	}
}

// wanted describes the form that a type needs; empty: the node has it.
func wanted(n *yaml.Node, t reflect.Type) string {
	tag := n.ShortTag()
	scalar := n.Kind == yaml.ScalarNode
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		if n.Kind != yaml.MappingNode {
			return "fields with values"
		}
	case reflect.Slice, reflect.Array:
		if n.Kind != yaml.SequenceNode {
			return "a list"
		}
	case reflect.String:
		if !scalar {
			return "a text"
		}
	case reflect.Bool:
		if !scalar || tag != "!!bool" {
			return "true or false"
		}
	case reflect.Float32, reflect.Float64:
		if !scalar || tag != "!!float" && tag != "!!int" {
			return "a number"
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if !scalar || tag != "!!int" {
			return "a whole number"
		}
	}
	return ""
}

func given(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a value with fields"
	case yaml.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%q", schema.Clip(n.Value, 80))
	}
}

func named(path string) string {
	if path == "" {
		return "the file"
	}
	return schema.Clip(path, 100)
}

func joined(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// fields are the names of a struct's fields in YAML, in their order.
type fields struct {
	names []string
	types map[string]reflect.Type
}

func fieldsOf(t reflect.Type) fields {
	f := fields{types: map[string]reflect.Type{}}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if !field.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = strings.ToLower(field.Name)
		}
		f.names, f.types[name] = append(f.names, name), field.Type
	}
	return f
}
