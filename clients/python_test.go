package clients_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// TestPythonTypes makes the dataclasses of the Python client.
func TestPythonTypes(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`# Code generated from the Go package schema by "go test ./clients -update". DO NOT EDIT.
"""The messages of the protocol.

docs/messages.md has the same fields as tables. A field of type Any is JSON: a
value, or bytes with JSON text that is sent unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .fields import wire
from .text import brief, of_result

__all__ = [
`)
	all := kinds(t)
	for _, k := range all {
		fmt.Fprintf(&b, "    %q,\n", k.Name)
	}
	b.WriteString("]\n")
	for _, k := range all {
		fmt.Fprintf(&b, "\n\n@dataclass(slots=True, kw_only=True)\nclass %s:\n%s\n", k.Name, docstring(k.Doc, "    "))
		for _, f := range k.Fields {
			fmt.Fprintf(&b, "    %s: %s = %s\n", pyName(f.Name), pyType(f.Type), pyValue(f))
			if doc := meaning(f.Doc, f.Name); doc != "" {
				b.WriteString(docstring(asSentence(doc, f.Name), "    "))
			}
		}
		text := "brief"
		if k.Name == "Result" {
			text = "of_result"
		}
		fmt.Fprintf(&b, "\n    def __repr__(self) -> str:\n        return %s(self)\n", text)
	}
	made(t, "python/src/turngate/schema/messages_generated.py", b.Bytes())
}

// pyName is the name of a field in Python, where some are keywords.
func pyName(name string) string {
	if name == "for" || name == "from" {
		return name + "_"
	}
	return name
}

// pyValue is the default of a field, and its description for the codec.
func pyValue(f field) string {
	value, factory := strings.CutPrefix(pyDefault(f), "default_factory=")
	value = strings.TrimPrefix(value, "default=")
	switch meta := f.meta(); {
	case meta == "" && !factory:
		return value
	case meta == "":
		return "field(default_factory=" + value + ")"
	case factory:
		return "field(default_factory=" + value + ", metadata=" + meta + ")"
	default:
		return "field(default=" + value + ", metadata=" + meta + ")"
	}
}

// asSentence gives a comment a capital letter, unless it begins with the name of its
// field, and a full stop.
func asSentence(doc, field string) string {
	if !strings.HasPrefix(doc, field+" ") {
		doc = strings.ToUpper(doc[:1]) + doc[1:]
	}
	return strings.TrimSuffix(doc, ".") + "."
}

func docstring(s, indent string) string {
	lines := wrap(strings.ReplaceAll(s, `\`, `\\`), 110)
	if len(lines) == 1 {
		return indent + `"""` + lines[0] + `"""` + "\n"
	}
	return indent + `"""` + strings.Join(lines, "\n"+indent) + "\n" + indent + `"""` + "\n"
}

func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}

func pyType(rt reflect.Type) string {
	switch rt {
	case rawJSON:
		return "Any"
	case tokenIDs:
		return "Sequence[int]"
	case logprobs:
		return "Sequence[float]"
	}
	switch rt.Kind() {
	case reflect.Pointer:
		return pyType(rt.Elem()) + " | None"
	case reflect.Slice:
		if rt.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "list[" + pyType(rt.Elem()) + "]"
	case reflect.Map:
		return "dict[str, " + pyType(rt.Elem()) + "]"
	case reflect.Struct:
		return rt.Name()
	case reflect.String:
		return "str"
	case reflect.Bool:
		return "bool"
	case reflect.Float64:
		return "float"
	default:
		return "int"
	}
}

func pyDefault(f field) string {
	switch {
	case f.Name == "v":
		return "default=1"
	case f.Type == rawJSON || f.Type.Kind() == reflect.Pointer:
		return "default=None"
	case f.Type == tokenIDs || f.Type == logprobs:
		return "default=()"
	}
	switch f.Type.Kind() {
	case reflect.Slice:
		if f.Type.Elem().Kind() == reflect.Uint8 {
			return `default=b""`
		}
		return "default_factory=list"
	case reflect.Map:
		return "default_factory=dict"
	case reflect.Struct:
		return "default_factory=lambda: " + f.Type.Name() + "()"
	case reflect.String:
		return `default=""`
	case reflect.Bool:
		return "default=False"
	case reflect.Float64:
		return "default=0.0"
	default:
		return "default=0"
	}
}

// meta describes the wire form and the bounds of a field for the codec.
func (f *field) meta() string {
	var parts []string
	if pyName(f.Name) != f.Name {
		parts = append(parts, fmt.Sprintf("name=%q", f.Name))
	}
	inner := f.Type
	for inner.Kind() == reflect.Map || inner.Kind() == reflect.Slice && inner != rawJSON && inner.Elem().Kind() != reflect.Uint8 {
		inner = inner.Elem()
	}
	switch {
	case inner == rawJSON:
		parts = append(parts, `form="json"`)
	case f.Type == tokenIDs:
		parts = append(parts, `form="ids"`)
	case f.Type == logprobs:
		parts = append(parts, `form="logprobs"`)
	}
	if f.Keep {
		parts = append(parts, "keep=True")
	}
	if f.Required {
		parts = append(parts, "required=True")
	}
	if f.High != "" {
		parts = append(parts, fmt.Sprintf("low=%s, high=%s", f.Low, f.High))
	}
	if f.Most > 0 {
		parts = append(parts, fmt.Sprintf("most=%d", f.Most))
	}
	if f.Each > 0 {
		parts = append(parts, fmt.Sprintf("each=%d", f.Each))
	}
	if len(f.OneOf) > 0 {
		parts = append(parts, `one_of=("`+strings.Join(f.OneOf, `", "`)+`",)`)
	}
	if len(parts) == 0 {
		return ""
	}
	return "wire(" + strings.Join(parts, ", ") + ")"
}
