package worker_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/turngate/turngate/sandboxes/dummy"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/worker"
)

// TestABlackBoxCallsItsModelItself and only its outcome is known.
func TestABlackBoxCallsItsModelItself(t *testing.T) {
	called := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		called = r.URL.Path + " " + r.Header.Get("Authorization")
	}))
	defer srv.Close()
	agent := func(ctx context.Context, p *dummy.Proc) int {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", nil)
		if err != nil {
			return 1
		}
		req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 1
		}
		res.Body.Close()
		_, _ = io.WriteString(p.Stdout, "my key is "+p.Env["OPENAI_API_KEY"]+"\n")
		return 0
	}
	b := newBench(t, shells(map[string]dummy.Program{"verify": reward("1")}, map[string]dummy.Program{"agent": agent}), func(c *worker.Config) {
		c.Upstreams = []worker.Upstream{{Name: "lab", Trainers: []string{"alpha"}, URL: srv.URL, Key: "sk-of-the-lab"}, {Name: "theirs", Trainers: []string{"beta"}}}
		c.Caps.Networks = []string{schema.NetworkOpen}
	})
	r := request("alpha-1")
	r.Mode, r.Model.Upstream, r.Sandbox.Network = schema.ModeBlack, "lab", schema.NetworkOpen
	res := b.result(t, r)
	if res.Status != schema.StatusDone || res.Reward == nil || *res.Reward != 1 || len(res.Calls) != 0 || called != "/v1/chat/completions Bearer sk-of-the-lab" {
		t.Errorf("got %+v, the engine was called as %q", res, called)
	}
	for _, a := range res.Artifacts {
		data, err := b.trainer.Artifact(t.Context(), a)
		if err != nil || strings.Contains(string(data), "sk-of-the-lab") {
			t.Errorf("artifact %s: %v %s", a.Name, err, data)
		}
	}
	theirs := r
	theirs.ID, theirs.Model.Upstream = "alpha-2", "theirs"
	if res := b.result(t, theirs); res.Status != schema.StatusFailed || res.Fault == nil || res.Fault.Who != schema.WhoUser {
		t.Errorf("another trainer's engine: %+v", res.Fault)
	}
	for field, change := range map[string]func(*schema.Request){
		"sandbox.network": func(r *schema.Request) { r.Sandbox.Network = "" },
		"model.upstream":  func(r *schema.Request) { r.Mode = schema.ModeGate },
	} {
		bad := r
		bad.ID = "alpha-3"
		change(&bad)
		if err := b.trainer.Submit(t.Context(), []schema.Request{bad}); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
