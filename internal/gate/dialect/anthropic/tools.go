package anthropic

import (
	stdjson "encoding/json"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/turngate/turngate/internal/gate/canonical"
	"github.com/turngate/turngate/internal/rawjson"
)

// ownTool returns the description and the schema of a tool that Anthropic
// defines, its models are trained on, and the client runs
// (https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/bash-tool and
// text-editor-tool).
func ownTool(kind string) (description, parameters jsontext.Value, ok bool) {
	switch {
	case strings.HasPrefix(kind, "bash_"):
		return rawjson.Quote("Runs a command in a bash shell that stays open."),
			jsontext.Value(`{"type":"object","properties":{"command":{"type":"string"},"restart":{"type":"boolean"}}}`), true
	case strings.HasPrefix(kind, "text_editor_"):
		return rawjson.Quote("Views and edits files."),
			jsontext.Value(`{"type":"object","properties":{"command":{"type":"string","enum":["view","create","str_replace","insert","undo_edit"]},"path":{"type":"string"},"file_text":{"type":"string"},` +
				`"old_str":{"type":"string"},"new_str":{"type":"string"},"insert_line":{"type":"integer"},"insert_text":{"type":"string"},"view_range":{"type":"array","items":{"type":"integer"}}},"required":["command","path"]}`), true
	}
	return nil, nil, false
}

// readOutput moves the format of the answer to chat's parameter.
func readOutput(value jsontext.Value, params map[string]stdjson.RawMessage) error {
	rest := rawjson.NewObject()
	err := rawjson.EachField(value, func(name string, v jsontext.Value) error {
		if name == "format" && v.Kind() != 'n' {
			return readFormat(v, params)
		}
		rest.Raw(name, v)
		return nil
	})
	if !rest.Empty() {
		params["output_config"] = rest.Done()
	}
	return err
}

func readFormat(v jsontext.Value, params map[string]stdjson.RawMessage) error {
	if v.Kind() == 'n' {
		return nil
	}
	var kind string
	var of jsontext.Value
	err := rawjson.EachField(v, func(name string, v jsontext.Value) (err error) {
		switch name {
		case "type":
			kind, err = rawjson.Unquote(v)
		case "schema":
			of = v
		}
		return err
	})
	if err == nil && (kind != "json_schema" || of == nil) {
		err = fmt.Errorf("a format of type %.80q is not supported: want json_schema, with a schema", kind)
	}
	if err == nil {
		params["response_format"] = canonical.AnswerSchema(of)
	}
	return err
}
