package front

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
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
	p := problemf(http.StatusBadRequest, schema.CodeInvalid, "the body is not JSON of this form")
	var form *rawjson.FormError
	if errors.As(rawjson.Plain(err), &form) {
		p.Field, p.Detail = form.Field, form.Error()
		if p.Field == "" {
			p.Detail = "the body: " + p.Detail
		}
	}
	return p
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
