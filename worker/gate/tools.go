package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/turngate/turngate/schema"
)

// ToolsPath is where the trainer's tools are listed (GET), and each is called
// (POST with its name behind a slash and its arguments as the body). The MCP
// server in the sandbox speaks to it, see agents/toolserver.
const ToolsPath = "/turngate/tools"

// maxToolBody is the longest arguments of a tool in bytes.
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
			refuse(w, d, Refusal{http.StatusInternalServerError, "server_error", "The tools cannot be listed."})
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

// serveTool has the trainer run a tool. What it gives goes to the agent as it
// is; why it could not be run stays in the events.
func (s *Session) serveTool(w http.ResponseWriter, r *http.Request, d Dialect) {
	name := r.PathValue("name")
	if !slices.ContainsFunc(s.cfg.Tools, func(t schema.ToolSpec) bool { return t.Name == name }) {
		refuse(w, d, Refusal{http.StatusNotFound, "not_found", fmt.Sprintf("There is no tool %q.", name)})
		return
	}
	if r.ContentLength > maxToolBody {
		refuse(w, d, Refusal{http.StatusRequestEntityTooLarge, "request_too_large", fmt.Sprintf("The arguments exceed %d bytes.", maxToolBody)})
		return
	}
	if !s.enterDoor(maxToolBody) {
		refuse(w, d, Refusal{http.StatusTooManyRequests, "too_many_requests", "Too many requests are open."})
		return
	}
	defer s.leaveDoor(maxToolBody)
	r.Body = http.MaxBytesReader(w, r.Body, maxToolBody)
	arguments, err := io.ReadAll(r.Body)
	var object map[string]json.RawMessage
	if err != nil || json.Unmarshal(arguments, &object) != nil {
		refuse(w, d, Refusal{http.StatusBadRequest, "invalid_request_error", "The arguments are not a JSON object."})
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
		refuse(w, d, Refusal{http.StatusInternalServerError, "server_error", "The result cannot be written."})
		return
	}
	write(w, http.StatusOK, body)
}

// ToolEnd tells how a call of a trainer's tool came out.
type ToolEnd struct {
	Call   schema.ToolCall
	Took   time.Duration
	Result *schema.ToolResult // nil if it failed
	Fault  *schema.Fault
}
