package agents

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// mcpServers returns the MCP servers in the form of most agents' configuration.
// more has further fields for a server with a command; url returns the fields of a
// server that runs already.
func mcpServers(l Launch, more map[string]any, url func(schema.MCPServer) map[string]any) map[string]any {
	all := map[string]any{}
	for _, m := range l.MCP {
		if m.URL != "" {
			all[m.Name] = url(m)
			continue
		}
		server := map[string]any{"command": m.Command[0], "args": append([]string{}, m.Command[1:]...)}
		if len(m.Env) > 0 {
			server["env"] = m.Env
		}
		maps.Copy(server, more)
		all[m.Name] = server
	}
	return all
}

// typedURL puts the transport into a field, where http is the name of streamable
// HTTP.
func typedURL(field, http string, more map[string]any) func(schema.MCPServer) map[string]any {
	return func(m schema.MCPServer) map[string]any {
		transport := m.Transport
		if transport == schema.TransportHTTP {
			transport = http
		}
		server := map[string]any{"url": m.URL}
		if transport != "" {
			server[field] = transport
		}
		maps.Copy(server, more)
		return server
	}
}

// geminiURL chooses the field for the URL by the transport.
func geminiURL(m schema.MCPServer) map[string]any {
	if m.Transport == schema.TransportHTTP {
		return map[string]any{"httpUrl": m.URL, "trust": true}
	}
	return map[string]any{"url": m.URL, "trust": true}
}

// bothURLs returns the transports of agents that support both.
func bothURLs() []string { return []string{schema.TransportSSE, schema.TransportHTTP} }

// checkMCP refuses servers with a transport that the agent does not support. An
// agent that calls no model ignores its servers.
func (s Spec) checkMCP(servers []schema.MCPServer) error {
	if len(servers) == 0 || s.Dialect == "" {
		return nil
	}
	if !s.MCP {
		return &schema.InvalidError{Field: "agent.mcp", Value: servers[0].Name, Want: "none: " + s.Name + " knows no MCP servers"}
	}
	for i, m := range servers {
		if m.URL != "" && !slices.Contains(s.MCPURLs, m.Transport) {
			can := strings.Join(append([]string{schema.TransportStdio}, s.MCPURLs...), ", ")
			return &schema.InvalidError{Field: fmt.Sprintf("agent.mcp[%d].transport", i), Value: m.Transport, Want: fmt.Sprintf("one that %s speaks: %s", s.Name, can)}
		}
	}
	return nil
}
