package console

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// TestAllFormsOfASecretAreMasked: an encoder on its way into a message changes a value.
func TestAllFormsOfASecretAreMasked(t *testing.T) {
	inJSON := func(s string) string {
		out, err := json.Marshal(map[string]string{"command": "login " + s})
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, value := range []string{"pa-ss-word-123456", `pa"ss-word-123456`, `pa\ss-word-123456`, "pa'ss<word>&123456", "pässwörd-1234 56", "pa\tss\x01word123456", `p\"a\\ss"word'12`} {
		for name, text := range map[string]string{
			"raw": value, "JSON": inJSON(value), "JSON in JSON": inJSON(inJSON(value)), "three times": inJSON(inJSON(inJSON(value))),
			"a shell": "login '" + strings.ReplaceAll(value, "'", `'\''`) + "'", "a shell in JSON": inJSON("login '" + strings.ReplaceAll(value, "'", `'\''`) + "'"),
			"a query": "https://host/?p=" + url.QueryEscape(value), "a path": "https://host/" + url.PathEscape(value),
			"base64": "echo " + base64.StdEncoding.EncodeToString([]byte(value)) + " | base64 -d", "hexadecimal": fmt.Sprintf("%x", value), "quoted by Go": fmt.Sprintf("%q", value), "quoted in ASCII": fmt.Sprintf("%+q", value),
		} {
			m := newMasker([]string{"DB_PASSWORD=" + value, "HOME=/home/me"})
			if got := m.text(text); strings.Contains(got, value) || !strings.Contains(got, maskedText) || strings.Contains(got, "word") || m.found["value of a variable"] == 0 {
				t.Errorf("%q as %s: %s becomes %s", value, name, text, got)
			}
		}
	}
}
