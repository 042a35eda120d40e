package console

import (
	"context"
	"errors"
	"net/http"

	"github.com/turngate/turngate/internal/operate"
	"github.com/turngate/turngate/internal/plain"
)

// Rights are the rights of a browser. Each act has the reason that forbids it; empty: allowed.
type Rights struct {
	System  bool   `json:"system"` // one that runs is shown
	Token   string `json:"token"`  // of the session, for writes
	Role    string `json:"role"`   // viewer or operator
	Read    string `json:"read"`   // the reason for which it may not read workers, queues and trainers
	Cancel  string `json:"cancel"`
	Retry   string `json:"retry"`
	Requeue string `json:"requeue"`
}

// errReadOnly is the reason for which a console that only reads does nothing else.
var errReadOnly = errors.New("this console was started to read only")

// rights returns the rights of the console. The server decides them by the credential.
func (s *Server) rights(ctx context.Context) (operate.Rights, error) {
	if s.operator == nil {
		return operate.Rights{Read: errNoSystem, Cancel: errNoSystem, Retry: errNoSystem, Requeue: errNoSystem}, nil
	}
	r, err := s.operator.rights.get(ctx)
	if err != nil {
		return r, err
	}
	if s.config.ReadOnly {
		r.Cancel, r.Retry, r.Requeue = errReadOnly, errReadOnly, errReadOnly
	}
	return r, nil
}

// allowed answers with the rights, and with the token that each write needs.
func (s *Server) allowed(w http.ResponseWriter, r *http.Request) {
	rights, err := s.rights(r.Context())
	if err != nil {
		http.Error(w, plain.Line(err.Error(), maxFault), http.StatusBadGateway)
		return
	}
	text := func(err error) string {
		if err == nil {
			return ""
		}
		return plain.Line(err.Error(), maxFault)
	}
	out := Rights{System: s.operator != nil, Role: "viewer", Token: sessionIn(r).token, Read: text(rights.Read), Cancel: text(rights.Cancel), Retry: text(rights.Retry), Requeue: text(rights.Requeue)}
	if rights.Cancel == nil || rights.Retry == nil || rights.Requeue == nil {
		out.Role = "operator"
	}
	writeJSON(w, out)
}
