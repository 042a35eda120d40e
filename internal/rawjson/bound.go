package rawjson

import (
	"errors"
	"fmt"
	"strconv"
)

// MaxNesting and MaxNumber bound the JSON of agents. Libraries that other programs
// read it with have such bounds: Python's refuses 1,000 levels and integers of
// 4,300 digits.
const (
	MaxNesting = 128 // values inside each other
	MaxNumber  = 400 // bytes of a number: the largest double has 309 digits
)

// Bound returns an error if values of a JSON text are more than nesting deep inside
// each other, or if a number is longer than MaxNumber or beyond the range of a
// double. It does not check that v is JSON.
func Bound(v []byte, nesting int) error {
	depth := 0
	for i := 0; i < len(v); {
		switch c := v[i]; {
		case c == '"':
			i = textEnd(v, i+1)
			continue
		case c == '{', c == '[':
			if depth++; depth > nesting {
				return fmt.Errorf("values are more than %d deep inside each other", nesting)
			}
		case c == '}', c == ']':
			depth--
		case c == '-', '0' <= c && c <= '9':
			end := i + 1
			for end < len(v) && inNumber(v[end]) {
				end++
			}
			if err := boundNumber(v[i:end]); err != nil {
				return err
			}
			i = end
			continue
		}
		i++
	}
	return nil
}

// textEnd returns the offset behind the string with a text that begins at i.
func textEnd(v []byte, i int) int {
	for i < len(v) && v[i] != '"' {
		if v[i] == '\\' {
			i++
		}
		i++
	}
	return i + 1
}

func inNumber(c byte) bool {
	return '0' <= c && c <= '9' || c == '.' || c == '+' || c == '-' || c|0x20 == 'e'
}

func boundNumber(n []byte) error {
	if len(n) <= 20 && len(n) > 0 && allDigits(n[1:]) {
		return nil
	}
	if len(n) > MaxNumber {
		return fmt.Errorf("a number has %d characters, more than %d", len(n), MaxNumber)
	}
	if _, err := strconv.ParseFloat(string(n), 64); errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("the number %.80s is beyond the range of a double", n)
	}
	return nil
}

func allDigits(n []byte) bool {
	for _, c := range n {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}
