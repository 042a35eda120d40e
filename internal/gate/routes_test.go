package gate

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRoutes checks the handler of each request.
func TestRoutes(t *testing.T) {
	var all routes
	served := ""
	for _, pattern := range []string{"GET /v1/models", "POST /v1/models/{call}", "POST /v1/messages", "POST /v1/messages/count_tokens"} {
		all.handle(pattern, func(_ http.ResponseWriter, r *http.Request) { served = pattern + " " + r.PathValue("call") })
	}
	for request, want := range map[string]string{
		"GET /v1/models": "GET /v1/models ", "HEAD /v1/models": "GET /v1/models ", "POST /v1/models": "", "POST /v1/models/": "",
		"POST /v1/models/a:b": "POST /v1/models/{call} a:b", "POST /v1/models/org%2Fa:b": "POST /v1/models/{call} org/a:b", "GET /v1/models/a:b": "",
		"POST /v1/messages": "POST /v1/messages ", "POST /v1/messages/count_tokens": "POST /v1/messages/count_tokens ", "POST /v1/messages/": "", "POST /": "", "POST /v1": "",
	} {
		method, path, _ := strings.Cut(request, " ")
		r := httptest.NewRequest(method, path, nil)
		served = ""
		if serve := all.find(r); serve != nil {
			serve(nil, r)
		}
		if served != want {
			t.Errorf("%s is served by %q, want %q", request, served, want)
		}
	}
}
