package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/turngate/turngate/internal/plain"
)

// Formats of lists.
const (
	formatTable = "table"
	formatWide  = "wide" // a table with more columns, which is not fitted into the terminal
	formatJSON  = "json"
	formatJSONL = "jsonl"
	formatYAML  = "yaml"
)

// addListOutput adds the flag --output of a command that prints a list.
func addListOutput(fl *pflag.FlagSet, to *string) {
	addOutput(fl, to, formatTable, formatWide, formatJSON, formatJSONL, formatYAML)
}

// isTable reports whether a person reads the format.
func isTable(format string) bool { return format == formatTable || format == formatWide }

// printList writes a list as data.
func printList[T any](w io.Writer, format string, list []T) error {
	if list == nil {
		list = []T{}
	}
	switch format {
	case formatJSON:
		return printJSON(w, list)
	case formatJSONL:
		e := json.NewEncoder(plain.JSON(w))
		for _, v := range list {
			if err := e.Encode(v); err != nil {
				return err
			}
		}
		return nil
	case formatYAML:
		return printYAML(w, list)
	default:
		return fmt.Errorf("%q is no format of data", format)
	}
}

// printYAML writes a value as YAML with the keys of its JSON, in their order.
func printYAML(w io.Writer, v any) error {
	var text bytes.Buffer
	if err := printJSON(&text, v); err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text.Bytes(), &doc); err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	plainStyle(&doc)
	data, err := yaml.Marshal(&doc)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = w.Write(data)
	return err
}

// plainStyle lets the encoder choose the style of each value instead of JSON's.
func plainStyle(n *yaml.Node) {
	if len(n.Content) > 0 || n.Kind == yaml.ScalarNode {
		n.Style = 0
	}
	for _, c := range n.Content {
		plainStyle(c)
	}
}
