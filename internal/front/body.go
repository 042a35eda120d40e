package front

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/schema"
)

// Bounds of JSON in bytes.
const (
	maxJSON    = 16 << 20 // body of a request, besides a bundle
	maxDecoded = 64 << 20 // its values in memory, which may be far larger: {} is a request of a kilobyte
)

// read reads the JSON body of a request. An unknown or repeated field is an error.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if strings.TrimSpace(kind) != "application/json" {
		return problemf(http.StatusUnsupportedMediaType, schema.CodeUnsupported, "want the header Content-Type: application/json")
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxJSON))
	if err != nil {
		return readError(err)
	}
	return decode(data, into)
}

// readError is the answer about a body that did not arrive.
func readError(err error) error {
	var tooLong *http.MaxBytesError
	if errors.As(err, &tooLong) {
		return err
	}
	return problemf(http.StatusBadRequest, schema.CodeInvalid, "the body did not arrive whole")
}

// errTooManyValues means that values of JSON take more memory than maxDecoded.
var errTooManyValues = errors.New("too many values")

// decode reads JSON. Its errors are problems that name the field.
func decode(data []byte, into any) error {
	left := maxDecoded
	bound := jsonv2.UnmarshalFromFunc(func(_ *jsontext.Decoder, value any) error {
		if left -= int(reflect.TypeOf(value).Elem().Size()); left < 0 {
			return errTooManyValues
		}
		return errors.ErrUnsupported // it is decoded as usual
	})
	err := jsonv2.Unmarshal(data, into, jsonv2.RejectUnknownMembers(true), jsonv2.WithUnmarshalers(bound))
	if err == nil {
		return nil
	}
	if errors.Is(err, errTooManyValues) {
		return problemf(http.StatusRequestEntityTooLarge, schema.CodeTooLarge, "the JSON has too many values")
	}
	var wrong *jsonv2.SemanticError
	var syntax *jsontext.SyntacticError
	p := problemf(http.StatusBadRequest, schema.CodeInvalid, "")
	switch {
	case errors.As(err, &wrong):
		p.Field = fieldOf(wrong.JSONPointer)
		p.Detail = p.Field + ": "
		switch {
		case errors.Is(err, jsonv2.ErrUnknownName):
			p.Detail += "there is no such field"
		case wrong.JSONKind != 0:
			p.Detail += "a value of another type is wanted than " + wrong.JSONKind.String()
		default:
			p.Detail += "the value is not valid"
		}
	case errors.As(err, &syntax):
		p.Field = fieldOf(syntax.JSONPointer)
		p.Detail = "the body is not JSON: "
		if p.Field != "" {
			p.Detail = p.Field + ": it is not JSON: "
		}
		p.Detail += schema.Clip(syntax.Err.Error(), 200) + " at byte " + strconv.FormatInt(syntax.ByteOffset, 10)
	default:
		p.Detail = "the body is not JSON of this form"
	}
	return p
}

// fieldOf writes a JSON pointer as schema's errors write a path: /requests/0/task as
// requests[0].task.
func fieldOf(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 32); err == nil {
			b.WriteString("[" + token + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(schema.Clip(token, 80))
	}
	return schema.Clip(b.String(), 300)
}

// reply answers with JSON.
func reply(w http.ResponseWriter, status int, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, err = w.Write(append(data, '\n'))
	return err
}
