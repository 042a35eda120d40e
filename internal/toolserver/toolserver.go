// Package toolserver is an MCP server (https://modelcontextprotocol.io) for the
// tools that a trainer runs. An agent starts it in its sandbox. The server gets
// the list of tools from the gate and passes each call on to it.
package toolserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// Environment variables with the gate's URL and key.
const (
	EnvURL = "TURNGATE_TOOLS_URL"
	EnvKey = "TURNGATE_TOOLS_KEY"
)

// maxAnswer is the size in bytes of the largest answer of the gate that is read.
const maxAnswer = 4 << 20

type client struct {
	url, key string
	http     *http.Client
}

// Run serves the gate's tools over stdin and stdout until stdin ends.
func Run(ctx context.Context, url, key string) error {
	// Ignore proxies of the environment: the gate is on the loopback address.
	c := client{url, key, &http.Client{Transport: &http.Transport{Proxy: nil}}}
	var tools []schema.ToolSpec
	if err := c.do(ctx, http.MethodGet, "", nil, &tools); err != nil {
		return fmt.Errorf("list the trainer's tools: %w", err)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: schema.ToolServer, Version: "1"}, nil)
	for _, t := range tools {
		parameters := t.Parameters
		if len(parameters) == 0 {
			parameters = json.RawMessage(`{"type":"object"}`)
		}
		server.AddTool(&mcp.Tool{Name: t.Name, Description: t.Description, InputSchema: parameters}, c.call)
	}
	return server.Run(ctx, &mcp.StdioTransport{})
}

// call passes one call on. An error becomes the result of the call, so that the
// model can react to it.
func (c client) call(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	arguments := r.Params.Arguments
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	var result schema.ToolResult
	if err := c.do(ctx, http.MethodPost, "/"+r.Params.Name, arguments, &result); err != nil {
		result.Text, result.IsError = err.Error(), true
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: result.Text}}, IsError: result.IsError}, nil
}

func (c client) do(ctx context.Context, method, path string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.key)
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the tool could not be run: %s", strings.TrimSpace(string(data)))
	}
	return rawjson.Plain(json.Unmarshal(data, into))
}
