package schema

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// plainPart is a member of a plain object or an element of a plain array.
type plainPart struct {
	name     []byte // of a member, without quotes
	from, to int
}

// members lists those of an object; ok is false if it is not of the plain kind.
func (p *PlainReader) members(list []plainPart) (_ []plainPart, ok bool) {
	if !p.Next('{') {
		return list, false
	}
	for !p.Next('}') {
		if len(list) > 0 && !p.Next(',') {
			return list, false
		}
		name, ok := p.Name()
		if !ok || len(list) == maxPlainMembers {
			return list, false
		}
		for _, before := range list {
			if string(before.name) == string(name) {
				return list, false
			}
		}
		from, ok := p.Value()
		if !ok {
			return list, false
		}
		list = append(list, plainPart{name, from, p.at})
	}
	return list, p.End()
}

// elements lists those of an array; ok is false if it is not of the plain kind.
func (p *PlainReader) elements(list []plainPart) (_ []plainPart, ok bool) {
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
		list = append(list, plainPart{nil, from, p.at})
	}
	return list, p.End()
}

// EachMember calls f for every member of a JSON object. Values are slices of
// body.
func EachMember(body []byte, f func(name string, value jsontext.Value) error) error {
	var few [16]plainPart
	p := ReadPlain(body, 0)
	if list, ok := p.members(few[:0]); ok {
		for _, m := range list {
			if err := f(string(m.name), body[m.from:m.to:m.to]); err != nil {
				return err
			}
		}
		return nil
	}
	return eachMember(body, f)
}

// eachMember is EachMember for what is not of the plain kind.
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

// EachElement calls f for every element of a JSON array; null is an empty one.
func EachElement(array jsontext.Value, f func(jsontext.Value) error) error {
	if array.Kind() == 'n' {
		return nil
	}
	var few [16]plainPart
	p := ReadPlain(array, 0)
	if list, ok := p.elements(few[:0]); ok {
		for _, m := range list {
			if err := f(array[m.from:m.to:m.to]); err != nil {
				return err
			}
		}
		return nil
	}
	return eachElement(array, f)
}

// eachElement is EachElement for what is not of the plain kind.
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
