package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/turngate/turngate/internal/rawjson"
)

// healthWithin is the time that the server has for the answer about its health.
const healthWithin = 5 * time.Second

// Healthy returns nil if JetStream works on this server. In a cluster that includes that
// the cluster has a leader and that the server has caught up with every stream and
// consumer of which it keeps a copy. The error has the server's own reason otherwise.
func (e *Embedded) Healthy() error {
	m, err := e.system.Request("$SYS.REQ.SERVER."+e.srv.ID()+".HEALTHZ", nil, healthWithin)
	if err != nil {
		return fmt.Errorf("ask the NATS server for its health: %w", err)
	}
	var answer struct {
		Data struct {
			Status string `json:"status"`
			Error  string `json:"error"`
		} `json:"data"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return fmt.Errorf("ask the NATS server for its health: its answer: %w", rawjson.Plain(err))
	}
	if answer.Data.Status != "ok" {
		return errors.New("the NATS server is not healthy: " + answer.Data.Error)
	}
	return nil
}
