package rawjson

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// Part is a member of a plain object or an element of a plain array.
type Part struct {
	Name     []byte // of a member, without quotes
	From, To int    // offsets of the value
}

// Members appends the members of an object to list. ok is false if the input is
// not one plain object.
func (p *Reader) Members(list []Part) (_ []Part, ok bool) {
	if !p.Next('{') {
		return list, false
	}
	for !p.Next('}') {
		if len(list) > 0 && !p.Next(',') {
			return list, false
		}
		name, ok := p.Name()
		if !ok || len(list) == MaxMembers {
			return list, false
		}
		for _, before := range list {
			if string(before.Name) == string(name) {
				return list, false
			}
		}
		from, ok := p.Value()
		if !ok {
			return list, false
		}
		list = append(list, Part{name, from, p.At})
	}
	return list, p.End()
}

// elements lists the elements of an array; ok is false if it is not plain.
func (p *Reader) elements(list []Part) (_ []Part, ok bool) {
	if !p.Next('[') {
		return list, false
	}
	for !p.Next(']') {
		if len(list) > 0 && !p.Next(',') {
			return list, false
		}
		from, ok := p.Value()
		if !ok {
			return list, false
		}
		list = append(list, Part{nil, from, p.At})
	}
	return list, p.End()
}

// EachMember calls f for every member of a JSON object. Values are slices of
// body. It returns the first error of f, or an error if body is not a JSON
// object.
func EachMember(body []byte, f func(name string, value jsontext.Value) error) error {
	var few [16]Part
	p := Read(body, 0)
	if list, ok := p.Members(few[:0]); ok {
		for _, m := range list {
			if err := f(string(m.Name), body[m.From:m.To:m.To]); err != nil {
				return err
			}
		}
		return nil
	}
	return eachMember(body, f)
}

// eachMember is EachMember for JSON that is not plain.
func eachMember(body []byte, f func(name string, value jsontext.Value) error) error {
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
		if err := f(key, jsontext.Value(body[end-len(v):end])); err != nil {
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
	var few [16]Part
	p := Read(array, 0)
	if list, ok := p.elements(few[:0]); ok {
		for _, m := range list {
			if err := f(array[m.From:m.To:m.To]); err != nil {
				return err
			}
		}
		return nil
	}
	return eachElement(array, f)
}

// eachElement is EachElement for JSON that is not plain.
func eachElement(array jsontext.Value, f func(jsontext.Value) error) error {
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
		if err := f(array[end-len(v) : end]); err != nil {
			return err
		}
	}
	return nil
}
