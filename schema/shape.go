package schema

import (
	"encoding/binary"
	"fmt"
)

// MaxBody is the largest encoded message that Decode reads, in bytes after
// decompression.
const MaxBody = 32 << 20

// Bounds of every message. They keep a hostile sender from making a decoder
// recurse or allocate without end.
const (
	maxDepth    = 16
	maxElements = 1 << 20
)

// ShapeError reports bytes that are not a msgpack map within the bounds of this
// package.
type ShapeError struct{ Reason string }

func (e *ShapeError) Error() string { return "malformed message: " + e.Reason }

// checkShape walks the msgpack structure (https://github.com/msgpack/msgpack/blob/master/spec.md)
// without recursion and without allocating: one map at the top, nothing nested
// deeper than maxDepth, every length inside the input, nothing behind it.
func checkShape(data []byte) error {
	if len(data) > MaxBody {
		return &ShapeError{fmt.Sprintf("%d bytes, at most %d are read", len(data), MaxBody)}
	}
	var left [maxDepth]int // values still to come at each open level
	depth, elements, pos := 0, 0, 0
	for first := true; first || depth > 0; first = false {
		v, err := scanValue(data, pos)
		if err != nil {
			return err
		}
		if first && !v.isMap {
			return &ShapeError{"not a map"}
		}
		pos = v.end
		if depth > 0 {
			left[depth-1]--
		}
		if elements += v.children + 1; elements > maxElements {
			return &ShapeError{fmt.Sprintf("more than %d values", maxElements)}
		}
		if v.children > 0 {
			if depth == maxDepth {
				return &ShapeError{fmt.Sprintf("nested deeper than %d", maxDepth)}
			}
			left[depth] = v.children
			depth++
		}
		for depth > 0 && left[depth-1] == 0 {
			depth--
		}
	}
	if pos != len(data) {
		return &ShapeError{fmt.Sprintf("%d bytes behind the end", len(data)-pos)}
	}
	return nil
}

type scanned struct {
	end      int // offset after the value's own bytes, without its children
	children int // number of values after it that belong to it
	isMap    bool
}

func scanValue(data []byte, pos int) (scanned, error) {
	if pos >= len(data) {
		return scanned{}, &ShapeError{"cut off"}
	}
	c := data[pos]
	pos++
	switch {
	case c <= 0x7f, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3: // small int, nil, bool
		return scanned{end: pos}, nil
	case c <= 0x8f:
		return container(data, pos, int(c&0x0f), true)
	case c <= 0x9f:
		return container(data, pos, int(c&0x0f), false)
	case c <= 0xbf:
		return scalar(data, pos, int(c&0x1f))
	}
	switch c {
	case 0xc4, 0xd9: // bin 8, str 8
		return sized(data, pos, 1, 0)
	case 0xc5, 0xda:
		return sized(data, pos, 2, 0)
	case 0xc6, 0xdb:
		return sized(data, pos, 4, 0)
	case 0xc7, 0xc8, 0xc9: // ext 8, 16, 32: one more byte for the type
		return sized(data, pos, 1<<(c-0xc7), 1)
	case 0xcc, 0xd0:
		return scalar(data, pos, 1)
	case 0xcd, 0xd1:
		return scalar(data, pos, 2)
	case 0xca, 0xce, 0xd2:
		return scalar(data, pos, 4)
	case 0xcb, 0xcf, 0xd3:
		return scalar(data, pos, 8)
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // fixext 1..16
		return scalar(data, pos, 1+1<<(c-0xd4))
	case 0xdc, 0xdd, 0xde, 0xdf: // array 16/32, map 16/32
		width := 2
		if c&1 == 1 {
			width = 4
		}
		n, err := length(data, pos, width)
		if err != nil {
			return scanned{}, err
		}
		return container(data, pos+width, n, c >= 0xde)
	}
	return scanned{}, &ShapeError{fmt.Sprintf("byte 0x%02x starts no value", c)}
}

func length(data []byte, pos, width int) (int, error) {
	if len(data)-pos < width {
		return 0, &ShapeError{"cut off"}
	}
	switch width {
	case 1:
		return int(data[pos]), nil
	case 2:
		return int(binary.BigEndian.Uint16(data[pos:])), nil
	default:
		return int(binary.BigEndian.Uint32(data[pos:])), nil
	}
}

func sized(data []byte, pos, width, extra int) (scanned, error) {
	n, err := length(data, pos, width)
	if err != nil {
		return scanned{}, err
	}
	return scalar(data, pos+width, n+extra)
}

func scalar(data []byte, pos, n int) (scanned, error) {
	if len(data)-pos < n {
		return scanned{}, &ShapeError{"cut off"}
	}
	return scanned{end: pos + n}, nil
}

func container(data []byte, pos, n int, isMap bool) (scanned, error) {
	if isMap {
		n *= 2
	}
	if len(data)-pos < n { // every child has at least one byte
		return scanned{}, &ShapeError{"cut off"}
	}
	return scanned{end: pos, children: n, isMap: isMap}, nil
}
