package chat

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/worker/gate/canonical"
	"github.com/turngate/turngate/worker/gate/dialect"
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
	case "stream_options": // handled by the gate
	case "n":
		return canonical.OnlyOne(name, value)
	default:
		m.Params[name] = json.RawMessage(value)
	}
	return nil
}
