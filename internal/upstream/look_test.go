package upstream_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/turngate/turngate/internal/upstream"
)

// TestALookFindsOnlyLastingReasons: a server that starts, is overloaded or lists no models, but
// is asked for a named one, may answer.
func TestALookFindsOnlyLastingReasons(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status  int
		body    string
		model   string
		answers bool
	}{
		"one model":                  {200, `{"data":[{"id":"a"}]}`, "", true},
		"two models":                 {200, `{"data":[{"id":"a"},{"id":"b"}]}`, "", false},
		"two models, one is named":   {200, `{"data":[{"id":"a"},{"id":"b"}]}`, "b", true},
		"it starts":                  {503, `{"error":{"message":"loading"}}`, "", true},
		"it is overloaded":           {429, ``, "", true},
		"no list":                    {404, `no such page`, "", false},
		"no list, a model is named":  {404, `no such page`, "b", true},
		"a page":                     {200, `<html>`, "", false},
		"a page, a model is named":   {200, `<html>`, "b", true},
		"a wrong key":                {401, `{"error":{"message":"no such key"}}`, "", false},
		"a wrong key, and the model": {403, ``, "b", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			}))
			defer s.Close()
			u, err := upstream.New(upstream.Config{URL: s.URL, Model: tt.model})
			if err != nil {
				t.Fatal(err)
			}
			if err := u.Look(t.Context()); (err == nil) != tt.answers {
				t.Errorf("got %v", err)
			}
		})
	}
	for _, model := range []string{"", "m"} {
		u, err := upstream.New(upstream.Config{URL: "http://127.0.0.1:1", Model: model})
		if err != nil {
			t.Fatal(err)
		}
		if u.Look(t.Context()) == nil {
			t.Errorf("a server that is not there, with model %q, may answer", model)
		}
	}
}
