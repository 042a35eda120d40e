package masks_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/masks"
)

// TestARefusalDoesNotQuoteTheKey in its body or its headers, for each header with a credential.
// An answer that is a success stays as it is.
func TestARefusalDoesNotQuoteTheKey(t *testing.T) {
	const key = "e2b_0123456789abcdef0123"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusUnauthorized
		if r.URL.Path == "/ok" {
			status = http.StatusOK
		}
		w.Header().Set("X-Why", "the key "+key)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"message":"the key `+key+` is not valid, it begins with `+key[:17]+`"}`)
	}))
	defer srv.Close()
	client := http.Client{Transport: &masks.Transport{Base: http.DefaultTransport}}
	for header, value := range map[string]string{"X-API-Key": key, "Authorization": "Bearer " + key, "X-Access-Token": key} {
		for path, hidden := range map[string]bool{"/ok": false, "/no": true} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+path, nil)
			harness.Must(t, err)
			req.Header.Set(header, value)
			res, err := client.Do(req)
			harness.Must(t, err)
			body, err := io.ReadAll(res.Body)
			harness.Must(t, err)
			res.Body.Close()
			text := string(body) + res.Header.Get("X-Why")
			if strings.Contains(text, key[:17]) == hidden || len(body) != len(`{"message":"the key  is not valid, it begins with "}`)+len(key)+17 {
				t.Errorf("%s, %s: %s", header, path, text)
			}
		}
	}
}

func TestShortWordsAreNoKeys(t *testing.T) {
	k := masks.Of("", "none", "key-0001", "key-0001")
	if len(k.All()) != 1 || k.Text("none of key-0001") != "none of [key]***" {
		t.Errorf("%q, %q", k.All(), k.Text("none of key-0001"))
	}
}
