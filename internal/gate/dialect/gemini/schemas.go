package gemini

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
)

// jsonSchema converts a Gemini schema to JSON Schema. In a Gemini schema types
// are upper case, bounds may be strings, and nullable is a member
// (https://ai.google.dev/api/caching#Schema).
func jsonSchema(v jsontext.Value) (jsontext.Value, error) { return schemaWithin(v, maxSchemaDepth) }

// maxSchemaDepth bounds the schemas inside each other: each is read once for
// every schema around it.
const maxSchemaDepth = 32

func schemaWithin(v jsontext.Value, depth int) (jsontext.Value, error) {
	if v.Kind() != '{' { // true or false
		return v, nil
	}
	if depth == 0 {
		return nil, fmt.Errorf("a schema has more than %d schemas around it", maxSchemaDepth)
	}
	inner := func(v jsontext.Value) (jsontext.Value, error) { return schemaWithin(v, depth-1) }
	out := rawjson.NewObject()
	nullable := false
	err := rawjson.EachMember(v, func(name string, v jsontext.Value) error {
		if name == "nullable" {
			nullable = v.Kind() == 't'
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = rawjson.EachMember(v, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "nullable":
			return nil
		case "type":
			v = schemaType(v, nullable)
		case "enum":
			if nullable && v.Kind() == '[' && !strings.Contains(string(v), "null") {
				v, err = each(v, nil, jsontext.Value("null"))
			}
		case "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties":
			if s, err := rawjson.Unquote(v); err == nil && v.Kind() == '"' {
				if _, err := strconv.ParseUint(s, 10, 63); err == nil {
					v = jsontext.Value(s)
				}
			}
		case "items", "additionalProperties", "not":
			v, err = inner(v)
		case "anyOf", "allOf", "oneOf", "prefixItems":
			v, err = each(v, inner)
		case "properties", "patternProperties", "$defs", "definitions":
			v, err = eachNamed(v, inner)
		}
		if err == nil {
			out.Raw(name, v)
		}
		return err
	})
	return out.Done(), err
}

// schemaType converts a type to JSON Schema.
func schemaType(v jsontext.Value, nullable bool) jsontext.Value {
	switch string(v) {
	case `"STRING"`, `"NUMBER"`, `"INTEGER"`, `"BOOLEAN"`, `"ARRAY"`, `"OBJECT"`, `"NULL"`:
		v = jsontext.Value(strings.ToLower(string(v)))
	}
	if nullable && v.Kind() == '"' && string(v) != `"null"` {
		return rawjson.List([]jsontext.Value{v, jsontext.Value(`"null"`)})
	}
	return v
}

// each converts the elements of a list and appends more.
func each(v jsontext.Value, f func(jsontext.Value) (jsontext.Value, error), more ...jsontext.Value) (jsontext.Value, error) {
	if v.Kind() != '[' {
		return v, nil
	}
	var all []jsontext.Value
	err := rawjson.EachElement(v, func(v jsontext.Value) (err error) {
		if f != nil {
			v, err = f(v)
		}
		all = append(all, v)
		return err
	})
	return rawjson.List(append(all, more...)), err
}

// eachNamed converts the members of an object.
func eachNamed(v jsontext.Value, f func(jsontext.Value) (jsontext.Value, error)) (jsontext.Value, error) {
	if v.Kind() != '{' {
		return v, nil
	}
	o := rawjson.NewObject()
	err := rawjson.EachMember(v, func(name string, v jsontext.Value) error {
		v, err := f(v)
		o.Raw(name, v)
		return err
	})
	return o.Done(), err
}
