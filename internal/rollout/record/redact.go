package record

import (
	"reflect"

	"github.com/turngate/turngate/internal/masks"
)

// secrets holds the keys of a rollout's sessions. An agent, a model, a tool or an
// error can quote a key.
type secrets struct{ masks.Keys }

// hide returns a value in which the keys are masked in every text, at any depth. It
// copies the parts that it changes, because others may use the value, too.
func hide[T any](s *secrets, v T) T {
	if len(s.All()) == 0 {
		return v
	}
	if out, changed := s.value(reflect.ValueOf(&v).Elem()); changed {
		return out.Interface().(T) //nolint:forcetypeassert // value keeps the type
	}
	return v
}

// value returns a value without keys, and whether it differs.
func (s *secrets) value(v reflect.Value) (reflect.Value, bool) {
	switch v.Kind() {
	case reflect.String:
		if t := s.Text(v.String()); t != v.String() {
			return reflect.ValueOf(t).Convert(v.Type()), true
		}
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return v, false
		}
		if inner, changed := s.value(v.Elem()); changed {
			if v.Kind() == reflect.Interface {
				return inner, true
			}
			out := reflect.New(v.Type().Elem())
			out.Elem().Set(inner)
			return out, true
		}
	case reflect.Struct:
		return s.parts(v, v.NumField(), reflect.Value.Field)
	case reflect.Slice:
		return s.slice(v)
	case reflect.Array:
		return s.parts(v, v.Len(), reflect.Value.Index)
	case reflect.Map:
		return s.table(v)
	}
	return v, false
}

func (s *secrets) slice(v reflect.Value) (reflect.Value, bool) {
	switch kind := v.Type().Elem().Kind(); {
	case kind == reflect.Uint8:
		out, changed := s.Bytes(v.Bytes())
		if !changed {
			return v, false
		}
		return reflect.ValueOf(out).Convert(v.Type()), true
	case kind <= reflect.Complex128: // numbers, such as token ids
		return v, false
	}
	return s.parts(v, v.Len(), reflect.Value.Index)
}

// parts hides the keys in the fields of a struct or the elements of a list.
func (s *secrets) parts(v reflect.Value, n int, part func(reflect.Value, int) reflect.Value) (reflect.Value, bool) {
	out, changed := v, false
	for i := range n {
		if v.Kind() == reflect.Struct && !v.Type().Field(i).IsExported() {
			continue
		}
		inner, differs := s.value(part(v, i))
		if !differs {
			continue
		}
		if !changed {
			out, changed = reflect.New(v.Type()).Elem(), true
			if v.Kind() == reflect.Slice {
				out.Set(reflect.MakeSlice(v.Type(), n, n))
				reflect.Copy(out, v)
			} else {
				out.Set(v)
			}
		}
		part(out, i).Set(inner)
	}
	return out, changed
}

func (s *secrets) table(v reflect.Value) (reflect.Value, bool) {
	out, changed := reflect.MakeMapWithSize(v.Type(), v.Len()), false
	for it := v.MapRange(); it.Next(); {
		key, one := s.value(it.Key())
		value, other := s.value(it.Value())
		changed = changed || one || other
		out.SetMapIndex(key, value)
	}
	if !changed {
		return v, false
	}
	return out, true
}
