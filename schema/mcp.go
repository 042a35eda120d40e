package schema

import (
	"fmt"
	"net/url"
)

// MCPServer is a server of the Model Context Protocol
// (https://modelcontextprotocol.io). If it has a Command, the agent starts it
// in the sandbox and speaks to it over stdin and stdout. If it has a URL, it
// runs already and the sandbox's network must reach it.
type MCPServer struct {
	Name    string            `json:"name"`
	Command []string          `json:"command,omitempty"` // argv
	Env     map[string]string `json:"env,omitempty"`     // of the command
	URL     string            `json:"url,omitempty"`     // instead of Command
	// Transport is "sse" or "streamable-http" for a URL, and "stdio" or empty for
	// a command.
	Transport string `json:"transport,omitempty"`
}

// Values of MCPServer.Transport.
const (
	TransportStdio = "stdio"
	TransportSSE   = "sse"
	TransportHTTP  = "streamable-http"
)

func (m *MCPServer) validate(field string) error {
	if m.URL == "" {
		if len(m.Command) == 0 || m.Command[0] == "" {
			return invalid(field+".command", "none", "want the argv of the server, or its url")
		}
		if m.Transport != "" && m.Transport != TransportStdio {
			return invalid(field+".transport", m.Transport, fmt.Sprintf("%s, or a url", TransportStdio))
		}
		if err := checkTextList(field+".command", m.Command, maxCommand); err != nil {
			return err
		}
		return checkEnv(field+".env", m.Env)
	}
	if len(m.Command) > 0 || len(m.Env) > 0 {
		return invalid(field+".url", m.URL, "either command and env, or url")
	}
	if err := checkText(field+".url", m.URL, 4096); err != nil {
		return err
	}
	if u, err := url.Parse(m.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return invalid(field+".url", m.URL, "want a URL such as http://tools:8000/mcp")
	}
	return checkOneOf(field+".transport", m.Transport, TransportSSE, TransportHTTP)
}
