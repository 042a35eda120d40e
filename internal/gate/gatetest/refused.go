package gatetest

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/schema"
)

// newestRefusal: the session knows whether the newest turn of the agent was refused, by
// the model or by the session itself. A call that the agent gave up was not refused.
func newestRefusal(t *testing.T, f Fixture) {
	waits := make(chan struct{})
	h := New(t, f, &Model{Answer: func(ctx context.Context, c schema.Call, frames func(schema.Frame) error) (schema.Reply, error) {
		switch text := string(c.Messages[0]); {
		case strings.Contains(text, "bad"):
			return schema.Reply{}, &schema.Fault{Code: "x", Message: "the engine's words", Status: http.StatusBadRequest}
		case strings.Contains(text, "title"):
			return schema.Reply{}, &schema.Fault{Code: "x", Message: "of a title", Status: http.StatusBadRequest}
		case strings.Contains(text, "wait"):
			close(waits)
			return blocking(nil)(ctx, c, frames)
		default:
			return Text("ok"), nil
		}
	}}, schema.GateOptions{}, func(c *gate.Config) {
		c.Tag = func(_ http.Header, c *schema.Call) string {
			if strings.Contains(string(c.Messages[0]), "title") {
				return schema.TagAux
			}
			return schema.TagAgent
		}
	})
	for _, step := range []struct{ body, words string }{
		{f.Body("good", false), ""}, {f.Body("bad", true), "the engine's words"}, {f.Body("good", true), ""}, {"[]", "the body is not"}, {f.Body("good", false), ""}, {f.Body("title", false), ""},
		{f.Body("bad", false), "the engine's words"}, {f.Body("title", false), "the engine's words"},
	} {
		h.Ask(step.body)
		if got := h.Session.Refused(); (got != nil) != (step.words != "") || got != nil && !strings.Contains(got.Message, step.words) {
			t.Errorf("after %s: %v, want %q", step.body, got, step.words)
		}
	}
	h.Ask(f.Body("good", false))
	var asks sync.WaitGroup
	asks.Go(func() { h.Ask(f.Body("wait", false)) })
	<-waits
	h.Session.Close()
	asks.Wait()
	if got := h.Session.Refused(); got != nil {
		t.Errorf("after the end of the session: %v", got)
	}
}
