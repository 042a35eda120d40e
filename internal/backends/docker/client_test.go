package docker_test

import (
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/backends/docker"
)

// TestVariablesOfTheEngine: settings that are no use, or that check no certificate, are
// refused by name.
func TestVariablesOfTheEngine(t *testing.T) {
	for want, v := range map[string][3]string{
		"DOCKER_TLS_VERIFY needs DOCKER_CERT_PATH": {"tcp://127.0.0.1:2376", "1", ""},
		"DOCKER_CERT_PATH needs DOCKER_TLS_VERIFY": {"tcp://127.0.0.1:2376", "", "/certs"},
		"DOCKER_CERT_PATH: ":                       {"tcp://127.0.0.1:2376", "1", "/no/such/folder"},
		"plain-text password":                      {"ssh://me:secret@host", "", ""},
		"want ssh://USER@HOST":                     {"ssh://", "", ""},
		"https is not valid: want unix://PATH":     {"https://127.0.0.1:2376", "1", "/certs"},
	} {
		t.Setenv("DOCKER_HOST", v[0])
		t.Setenv("DOCKER_TLS_VERIFY", v[1])
		t.Setenv("DOCKER_CERT_PATH", v[2])
		if _, err := docker.New(docker.Config{}); err == nil || !strings.HasPrefix(err.Error(), "set up the Docker client: DOCKER_HOST: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", v, err)
		}
	}
}
