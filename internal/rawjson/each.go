package rawjson

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// EachMember calls f for every member of a JSON object. Values are slices of
// body. It returns the first error of f, or an error if body is not a JSON
// object.
func EachMember(body []byte, f func(name string, value jsontext.Value) error) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(body))
	if t, err := d.ReadToken(); err != nil {
		return err
	} else if t.Kind() != '{' {
		return errors.New("not a JSON object")
	}
	for d.PeekKind() == '"' {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		key := name.String()
		v, err := d.ReadValue()
		if err != nil {
			return err
		}
		end := int(d.InputOffset())
		if err := f(key, body[end-len(v):end:end]); err != nil {
			return err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return err
	}
	if rest := bytes.TrimSpace(body[d.InputOffset():]); len(rest) > 0 {
		return errors.New("something follows the JSON object")
	}
	return nil
}

// EachElement calls f for every element of a JSON array; null counts as empty.
// It returns the first error of f, or an error if array is not a JSON array.
func EachElement(array jsontext.Value, f func(jsontext.Value) error) error {
	if array.Kind() == 'n' {
		return nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(array))
	if t, err := d.ReadToken(); err != nil {
		return err
	} else if t.Kind() != '[' {
		return errors.New("not a JSON array")
	}
	for d.PeekKind() != ']' {
		v, err := d.ReadValue()
		if err != nil {
			return err
		}
		end := int(d.InputOffset())
		if err := f(array[end-len(v) : end : end]); err != nil {
			return err
		}
	}
	return nil
}
