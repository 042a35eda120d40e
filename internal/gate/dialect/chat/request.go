package chat

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
)

// readMember reads a member of a request. Messages and tools are canonical.
func readMember(m *dialect.Members, name string, value jsontext.Value) (err error) {
	switch name {
	case "messages":
		return errors.New("messages is not an array")
	case "model":
		if m.Model, err = rawjson.Unquote(value); err != nil {
			return fmt.Errorf("model: %w", err)
		}
	case "stream":
		m.Stream = value.Kind() == 't'
	case "stream_options":
		o, err := readOptions(value)
		if err != nil {
			return fmt.Errorf("stream_options: %w", err)
		}
		m.Options = o
	case "n":
		return canonical.OnlyOne(name, value)
	default:
		m.Params[name] = json.RawMessage(value)
	}
	return nil
}

// options has the options that change the form of a stream.
type options struct{ usage bool }

// readOptions reads stream_options. Its other members do not concern the answer of a
// gate.
func readOptions(value jsontext.Value) (o options, err error) {
	if value.Kind() == 'n' {
		return o, nil
	}
	err = rawjson.EachField(value, func(name string, v jsontext.Value) (err error) {
		if name == "include_usage" {
			o.usage, err = rawjson.IsTrue(v)
		}
		return err
	})
	return o, err
}
