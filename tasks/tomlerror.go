package tasks

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// mismatch is the message of the TOML reader about a value of a wrong type.
var mismatch = regexp.MustCompile(`(?s)cannot decode TOML ([a-z ]+) into .* ([^ ]+)$`)

// tomlError is the error of a task.toml that cannot be read: its key, its line and
// a valid form, without the names of Go types.
func tomlError(dir string, err error) *Error {
	var at *toml.DecodeError
	if !errors.As(err, &at) {
		return &Error{dir, "task.toml", err.Error()}
	}
	line, _ := at.Position()
	field := strings.Join(at.Key(), ".")
	m := mismatch.FindStringSubmatch(at.Error())
	if m == nil || field == "" {
		return &Error{dir, "task.toml", fmt.Sprintf("line %d: %s", line, strings.TrimPrefix(at.Error(), "toml: "))}
	}
	return &Error{dir, field, fmt.Sprintf("the %s in line %d is not valid: want %s", m[1], line, formOf(m[2]))}
}

// formOf names the TOML form of a Go type.
func formOf(goType string) string {
	switch {
	case goType == "float64":
		return "a number"
	case goType == "int":
		return "a number without a fraction"
	case goType == "string":
		return "a text"
	case goType == "bool":
		return "true or false"
	case strings.HasPrefix(goType, "[]"), goType == "{}": // []interface {}
		return "a list"
	}
	return "a table"
}
