package rawjson

import (
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
)

type read struct {
	N     int
	Small uint8
	F     float64
	S     string
	B     bool
	At    time.Time
	Data  []byte
	List  []struct{ N *int }
	Map   map[string]string
	Own   own
}

// own reads its own JSON.
type own string

func (o *own) UnmarshalJSON(data []byte) error {
	var s string
	err := json.Unmarshal(data, &s)
	*o = own(s)
	return Plain(err)
}

// TestPlain reads wrong JSON with both libraries. The errors name the field, the value and
// a valid form, and no type.
func TestPlain(t *testing.T) {
	for text, want := range map[string]struct{ old, now string }{
		`{"N":"x"}`:              {"N: a string is not valid: want a whole number of 64 bits", ""},
		`{"N":1.5}`:              {"N: 1.5 is not valid: want a whole number of 64 bits", ""},
		`{"Small":300}`:          {"Small: 300 is not valid: want a whole number from 0, of 8 bits", ""},
		`{"F":true}`:             {"F: a boolean is not valid: want a number", ""},
		`{"S":[]}`:               {"S: an array is not valid: want a string", ""},
		`{"B":{}}`:               {"B: an object is not valid: want true or false", ""},
		`{"At":"soon"}`:          {`"soon" is not valid: want a string with a time such as 2026-01-31T12:00:00Z`, `At: "soon" is not valid: want a string with a time`},
		`{"At":5}`:               {"want a string with a time such as", "At: a number is not valid: want a string"},
		`{"Data":{}}`:            {"Data: an object is not valid: want a string in base64", ""},
		`{"List":[{},{"N":{}}]}`: {"List.N: an object is not valid: want a whole number", "List[1].N: an object is not valid: want a whole number"},
		`{"List":"x"}`:           {"List: a string is not valid: want an array", ""},
		`{"Map":{"k":1}}`:        {"Map: a number is not valid: want a string", "Map.k: "},
		`{"Own":1}`:              {"a number is not valid: want a string", "Own: a number is not valid: want a string"},
		`[]`:                     {"an array is not valid: want an object", ""},
		`{"N":1`:                 {"it is not JSON: unexpected end of JSON input", "it is not JSON: unexpected EOF at byte 6"},
		`{"N":x}`:                {"it is not JSON: invalid character 'x'", ""},
	} {
		var v read
		old := Plain(json.Unmarshal([]byte(text), &v))
		if want.now == "" {
			want.now = want.old
		}
		now := Plain(jsonv2.Unmarshal([]byte(text), &v))
		for err, want := range map[error]string{old: want.old, now: want.now} {
			var form *FormError
			if !errors.As(err, &form) || !strings.Contains(err.Error(), want) || regexp.MustCompile(`Go |rawjson|json:|jsontext|uint|int64|Time\.`).MatchString(err.Error()) {
				t.Errorf("%s: %v: want %s", text, err, want)
			}
		}
	}
	var v read
	if err := Plain(jsonv2.Unmarshal([]byte(`{"List":[{"more":1}]}`), &v, jsonv2.RejectUnknownMembers(true))); err == nil || err.Error() != "List[0].more: there is no such field" {
		t.Error(err)
	}
	strict := json.NewDecoder(strings.NewReader(`{"more":1}`))
	strict.DisallowUnknownFields()
	if err := Plain(strict.Decode(&v)); err == nil || err.Error() != "more: there is no such field" {
		t.Error(err)
	}
	if Plain(nil) != nil || !errors.Is(Plain(io.EOF), io.EOF) || Plain(io.EOF).Error() != "EOF" {
		t.Error("another error is changed")
	}
	if err := Plain(json.Unmarshal([]byte(`{`), &v)); !errors.As(err, new(*json.SyntaxError)) {
		t.Errorf("the cause is lost: %v", err)
	}
}
