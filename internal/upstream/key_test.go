package upstream_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

// TestNoFaultHasTheKeyOfAnUpstream, although the server quotes it: in a refusal, and within a
// stream.
func TestNoFaultHasTheKeyOfAnUpstream(t *testing.T) {
	t.Parallel()
	const key = "sk-proj-0123456789abcdef"
	for _, status := range []int{http.StatusUnauthorized, http.StatusBadRequest, http.StatusOK} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text := `{"error":{"message":"the key ` + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ") + ` has no rights","type":"x"}}`
			w.WriteHeader(status)
			if status == http.StatusOK {
				text = "data: " + text + "\n\n"
			}
			_, _ = io.WriteString(w, text)
		}))
		u, err := upstream.New(upstream.Config{URL: srv.URL, Key: key, Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = u.Answer(t.Context(), call(), func(*schema.Delta) error { return nil })
		if err == nil || strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "[key]") {
			t.Errorf("%d: %v", status, err)
		}
		srv.Close()
	}
}
