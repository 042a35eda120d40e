package agents

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"time"

	"github.com/turngate/turngate/schema"
)

// copilot is GitHub's Copilot CLI with a custom model, which needs no login. It
// reads its system prompt only from AGENTS.md.
func copilot() Spec {
	const version = "1.0.102"
	return Spec{
		Name: "copilot", Version: version, Dialect: "chat", Needs: []string{"bash"}, Glibc: true, MCP: true,
		Sessions: ".copilot/session-state", Skills: ".copilot/skills", MCPURLs: bothURLs(),
		Packages: []Package{{Name: "@github/copilot-linux-{arch}", Version: version, Dir: "copilot"}},
		Files: func(l Launch) (map[string]File, error) {
			root, err := emptyTrust()
			if err != nil {
				return nil, err
			}
			files := map[string]File{l.Dir + "/root.pem": {root, 0o600}}
			if len(l.MCP) > 0 {
				servers := mcpServers(l, map[string]any{"type": "local", "tools": []string{"*"}}, typedURL("type", "http", map[string]any{"tools": []string{"*"}}))
				files[l.Dir+"/mcp.json"] = File{quote(map[string]any{"mcpServers": servers}), 0o600}
			}
			return files, nil
		},
		Command: func(l Launch) Command {
			env := common(l)
			maps.Copy(env, map[string]string{
				"COPILOT_HOME": l.Dir + "/.copilot", "COPILOT_CACHE_HOME": l.Dir + "/.cache/copilot",
				"COPILOT_PROVIDER_BASE_URL": l.BaseURL + "/v1", "COPILOT_PROVIDER_API_KEY": l.Key, "COPILOT_PROVIDER_TYPE": "openai", "COPILOT_PROVIDER_WIRE_API": "completions",
				"NODE_EXTRA_CA_CERTS": l.Dir + "/root.pem",
				"COPILOT_MODEL":       l.Model, "COPILOT_OFFLINE": "true", "COPILOT_AUTO_UPDATE": "false",
			})
			args := []string{l.Installed + "/copilot/copilot", "--output-format", "json", "--allow-all", "--no-ask-user", "--no-auto-update"}
			if len(l.MCP) > 0 {
				args = append(args, "--additional-mcp-config", "@"+l.Dir+"/mcp.json")
			}
			return Command{Args: append(args, l.Args...), Env: env, Stdin: l.Instruction}
		},
		Tag: func(h http.Header, c *schema.Call) string {
			if h.Get("X-Interaction-Type") == "conversation-subagent" {
				return schema.TagSubagent
			}
			return withoutTools(c)
		},
		ParseEvent: parseCopilot,
	}
}

// emptyTrust makes a root certificate and discards its key. Copilot starts only if
// it finds a root certificate, although it uses plain HTTP to reach the gate, and
// many images have none.
func emptyTrust() ([]byte, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nobody"}, NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, &cert, &cert, public, private)
	if err != nil {
		return nil, fmt.Errorf("make a root certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func parseCopilot(line []byte) *Event {
	var e struct {
		Type string
		Data struct {
			Content, Message, ToolCallID, ToolName string
			Arguments                              json.RawMessage
			Result                                 struct{ Content string }
			Error                                  struct{ Message string }
		}
	}
	if json.Unmarshal(line, &e) != nil || e.Type == "" {
		return nil
	}
	switch e.Type {
	case "assistant.message":
		if e.Data.Content != "" {
			return &Event{Kind: "text", Text: e.Data.Content}
		}
	case "tool.execution_start":
		return &Event{Kind: "tool_call", Tool: e.Data.ToolName, ID: e.Data.ToolCallID, Input: e.Data.Arguments}
	case "tool.execution_complete":
		return &Event{Kind: "tool_result", ID: e.Data.ToolCallID, Output: e.Data.Result.Content + e.Data.Error.Message}
	case "session.error":
		return &Event{Kind: "error", Text: e.Data.Message}
	}
	return &Event{Kind: "other", Text: e.Type}
}
