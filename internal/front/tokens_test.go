package front

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
)

const sumOfA, sumOfB = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"

// TestTokens reads a file: a trainer may have two tokens, and creds is found from the
// folder of the file.
func TestTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.yaml")
	text := "- {trainer: alpha, sha256: " + sumOfA + ", creds: trainer-alpha.nk}\n- {trainer: alpha, sha256: " + sumOfB + ", creds: trainer-alpha.nk}\n"
	harness.Must(t, os.WriteFile(file, []byte(text), 0o600))
	tokens, err := ReadTokens(file)
	harness.Must(t, err)
	for token, want := range map[string]string{"a": "alpha", "b": "alpha", "c": "", "": ""} {
		if got := tokens.holder(token); got != want {
			t.Errorf("the holder of %q: %q", token, got)
		}
	}
	if got, want := tokens.trainers["alpha"], filepath.Join(filepath.Dir(file), "trainer-alpha.nk"); got != want {
		t.Errorf("the credential is %s, want %s", got, want)
	}
	harness.Must(t, os.Chmod(file, 0o620))
	if _, err := ReadTokens(file); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a file that others write: %v", err)
	}
}

// emptySum is the sha256 of nothing.
const emptySum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// TestWrongTokens: an error names the entry and the field.
func TestWrongTokens(t *testing.T) {
	for text, want := range map[string]string{
		"":   "no entry",
		"{}": "list",
		"- {trainer: Alpha, sha256: " + sumOfA + "}":                                                                 "[0].trainer",
		"- {trainer: alpha, sha256: " + emptySum + "}":                                                               "[0].sha256",
		"- {trainer: alpha, sha256: secret}":                                                                         "[0].sha256",
		"- {trainer: alpha, token: secret}":                                                                          "token",
		"- {trainer: alpha, sha256: " + sumOfA + "}\n- {trainer: beta, sha256: " + sumOfA + "}":                      "[1].sha256",
		"- {trainer: alpha, sha256: " + sumOfA + ", creds: a}\n- {trainer: alpha, sha256: " + sumOfB + ", creds: b}": "[1].creds",
		"- {trainer: alpha, sha256: " + sumOfA + ", creds: trainer-beta.nk}":                                         "[0].creds",
		"- {trainer: alpha, sha256: " + sumOfA + ", creds: admin.nk}":                                                "[0].creds",
	} {
		if _, err := parseTokens([]byte(text), "/"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// FuzzBodies reads foreign bodies of each kind: none is accepted with an invalid request.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"requests":[{"task":{"name":"t"},"agent":{"name":"mini"},"sandbox":{"backend":"dummy"}}]}`))
	f.Add([]byte(`{"n":1,"request":{"task":{"name":"t"},"labels":{"a":"b"},"agent":{"mcp":[{}]}}}`))
	f.Add([]byte(`{"ids":["alpha-1"],"reason":"\ud800"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, into := range []any{new(submission), new(groupSubmission), new(cancellation)} {
			err := decode(data, into)
			if err == nil {
				continue
			}
			if p, inside := problemOf(err); inside || p.Status/100 != 4 || p.Detail == "" {
				t.Errorf("%s: %+v", data, p)
			}
		}
	})
}
