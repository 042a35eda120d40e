package record

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	masked = "[key]"
	// shortestKey is the length from which a key is a secret. Shorter ones are
	// placeholders such as "none", which are words of many texts.
	shortestKey = 8
	// shortestPart is the length from which a part of a key is masked, too, since a
	// text may be cut in the middle of a key. In a random key of the gate, shorter
	// parts are of no use to others.
	shortestPart = 16
)

// secrets holds the keys of a rollout's sessions. An agent, a model, a tool or an
// error can quote a key.
type secrets struct {
	mu   sync.RWMutex
	keys []string
}

func (s *secrets) add(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(key) >= shortestKey && !slices.Contains(s.keys, key) {
		s.keys = append(slices.Clip(s.keys), key)
	}
}

func (s *secrets) all() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.keys
}

// bytes masks the keys in a text and keeps its length. It copies a text that it
// changes.
func (s *secrets) bytes(text []byte) (out []byte, changed bool) {
	out = text
	for _, key := range s.all() {
		for _, found := range parts(out, key) {
			if !changed {
				out, changed = bytes.Clone(text), true
			}
			hidden := out[found[0]:found[1]]
			for i := range hidden {
				hidden[i] = '*'
			}
			copy(hidden, masked)
		}
	}
	return out, changed
}

func (s *secrets) text(t string) string {
	if len(t) < shortestKey || len(s.all()) == 0 {
		return t
	}
	if out, changed := s.bytes([]byte(t)); changed {
		return string(out)
	}
	return t
}

// parts finds the key in a text, and its parts of at least shortestPart bytes. Each of
// them has one of the key's blocks of shortestKey bytes, in which parts looks for it.
func parts(text []byte, key string) (found [][2]int) {
	least := min(len(key), shortestPart)
	for off := 0; off+shortestKey <= len(key); off += shortestKey {
		block := []byte(key[off : off+shortestKey])
		for at := 0; ; {
			i := bytes.Index(text[at:], block)
			if i < 0 {
				break
			}
			from, to := at+i, at+i+shortestKey
			for first := off; from > 0 && first > 0 && text[from-1] == key[first-1]; from-- {
				first--
			}
			for next := off + shortestKey; to < len(text) && next < len(key) && text[to] == key[next]; to++ {
				next++
			}
			at += i + 1
			if to-from >= least {
				found = append(found, [2]int{from, to})
				at = max(at, to)
			}
		}
	}
	return found
}

// file masks the keys in a file. An archive stays readable.
func (s *secrets) file(data []byte) []byte {
	out, changed := s.bytes(data)
	if changed {
		mendTar(out, data)
	}
	return out
}

// tarBlock is the size of the blocks of a tar archive.
const tarBlock = 512

// mendTar corrects the checksums of the headers in which an archive differs from what
// it was. Each header has its checksum, as text, and the size of its file.
func mendTar(data, was []byte) {
	for at := 0; at+tarBlock <= len(data) && bytes.HasPrefix(was[at+257:], []byte("ustar")); {
		header := data[at : at+tarBlock]
		if !bytes.Equal(header, was[at:at+tarBlock]) {
			copy(header[148:], "        ")
			sum := 0
			for _, b := range header {
				sum += int(b)
			}
			copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
		}
		size, ok := tarSize(header[124:136])
		if !ok || size > int64(len(data)) {
			return
		}
		at += tarBlock + int((size+tarBlock-1)/tarBlock)*tarBlock
	}
}

// tarSize reads the size of a file: octal digits, or a number of base 256 if the first
// bit is set.
func tarSize(field []byte) (size int64, ok bool) {
	if field[0]&0x80 == 0 {
		size, err := strconv.ParseInt(strings.Trim(string(field), " \x00"), 8, 64)
		return size, err == nil && size >= 0
	}
	for _, b := range field[len(field)-7:] {
		size = size<<8 | int64(b)
	}
	return size, true
}

// hide returns a value in which the keys are masked in every text, at any depth. It
// copies the parts that it changes, because others may use the value, too.
func hide[T any](s *secrets, v T) T {
	if len(s.all()) == 0 {
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
		if t := s.text(v.String()); t != v.String() {
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
		out, changed := s.bytes(v.Bytes())
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
