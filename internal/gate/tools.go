package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/schema"
)

// ToolsPath is the path of the trainer's tools: GET lists them; POST to the
// path with a slash and a tool's name calls it, with the arguments as the body.
// The MCP server in the sandbox uses it, see internal/toolserver.
const ToolsPath = "/turngate/tools"

// maxToolBody bounds the arguments of a tool, in bytes.
const maxToolBody = 1 << 20

func (s *Session) serveTools() {
	if len(s.cfg.Tools) == 0 {
		return
	}
	d := s.cfg.Dialects[0]
	s.routes.handle("GET "+ToolsPath, func(w http.ResponseWriter, r *http.Request) {
		if !s.admit(w, r, d) {
			return
		}
		body, err := json.Marshal(s.cfg.Tools)
		if err != nil {
			refuse(w, d, dialect.Refusal{Status: http.StatusInternalServerError, Code: "server_error", Message: "The tools cannot be listed."})
			return
		}
		write(w, http.StatusOK, body)
	})
	s.routes.handle("POST "+ToolsPath+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		if s.admit(w, r, d) {
			s.serveTool(w, r, d)
		}
	})
}

// serveTool has the trainer run a tool. The agent gets the result unchanged;
// the reason of a failure goes to the events only.
func (s *Session) serveTool(w http.ResponseWriter, r *http.Request, d dialect.Dialect) {
	name := r.PathValue("name")
	if !slices.ContainsFunc(s.cfg.Tools, func(t schema.ToolSpec) bool { return t.Name == name }) {
		refuse(w, d, dialect.Refusal{Status: http.StatusNotFound, Code: "not_found", Message: fmt.Sprintf("There is no tool %q.", name)})
		return
	}
	if r.ContentLength > maxToolBody {
		refuse(w, d, dialect.Refusal{Status: http.StatusRequestEntityTooLarge, Code: "request_too_large", Message: fmt.Sprintf("The arguments exceed %d bytes.", maxToolBody)})
		return
	}
	room := &room{s: s}
	if err := room.enter(maxToolBody); err != nil {
		refuse(w, d, notTaken(err))
		return
	}
	defer room.leave()
	r.Body = http.MaxBytesReader(w, r.Body, maxToolBody)
	arguments, err := io.ReadAll(r.Body)
	var object map[string]json.RawMessage
	if err != nil || json.Unmarshal(arguments, &object) != nil {
		refuse(w, d, dialect.Refusal{Status: http.StatusBadRequest, Code: "invalid_request_error", Message: "The arguments are not a JSON object."})
		return
	}
	if err := rawjson.Bound(arguments, rawjson.MaxNesting); err != nil {
		refuse(w, d, notTaken(fmt.Errorf("the arguments: %w", err)))
		return
	}
	s.mu.Lock()
	if s.count+s.toolCalls >= s.cfg.Options.MaxCalls {
		s.mu.Unlock()
		refuse(w, d, s.over(schema.Faultf("agent", schema.CodeCallCap, schema.WhoAgent, "it asked for more than %d calls", s.cfg.Options.MaxCalls)))
		return
	}
	s.toolCalls++
	c := schema.ToolCall{V: schema.Version, Name: name, Arguments: arguments, Key: schema.Key{Rollout: s.cfg.Rollout, Attempt: s.cfg.Attempt, Call: s.toolCalls}.String()}
	s.mu.Unlock()
	start := time.Now()
	result, err := s.cfg.CallTool(r.Context(), c)
	end := ToolEnd{Call: c, Took: time.Since(start)}
	if err == nil {
		end.Result = &result
	} else if !errors.As(err, &end.Fault) {
		end.Fault = schema.Faultf("tool", schema.CodeInternal, schema.WhoWorker, "%v", err)
	}
	s.cfg.Observer.ToolEnded(end)
	if err != nil {
		refuse(w, d, refusalOf(err))
		return
	}
	body, err := json.Marshal(result)
	if err != nil {
		refuse(w, d, dialect.Refusal{Status: http.StatusInternalServerError, Code: "server_error", Message: "The result cannot be written."})
		return
	}
	write(w, http.StatusOK, body)
}

// ToolEnd describes the end of a call of a trainer's tool.
type ToolEnd struct {
	Call   schema.ToolCall
	Took   time.Duration
	Result *schema.ToolResult // nil if it failed
	Fault  *schema.Fault
}
