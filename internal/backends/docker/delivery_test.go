package docker

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/system"

	"github.com/turngate/turngate/internal/harness"
)

// engineAt returns an engine by TCP that answers as the handler does.
func engineAt(t *testing.T, answer http.HandlerFunc) engine {
	t.Helper()
	far := httptest.NewServer(answer)
	t.Cleanup(far.Close)
	t.Setenv("DOCKER_HOST", "tcp://"+far.Listener.Addr().String())
	t.Setenv("DOCKER_TLS_VERIFY", "")
	t.Setenv("DOCKER_CERT_PATH", "")
	api, err := newClient()
	harness.Must(t, err)
	t.Cleanup(func() { _ = api.Close() })
	return engine{api}
}

// TestAnEngineOfAHostOfTheSameKind: a host with the same kernel and memory, and a file
// system that this host shares, is another host. Its containers have no sockets of this one.
func TestAnEngineOfAHostOfTheSameKind(t *testing.T) {
	kernel, memory, err := thisKernel()
	harness.Must(t, err)
	name, err := os.Hostname()
	harness.Must(t, err)
	for said, want := range map[string]bool{name: true, name + "-2": false} {
		e := engineAt(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/containers/create") { // it has the files: the image is missing
				w.WriteHeader(http.StatusNotFound)
				_, _ = w.Write([]byte(`{"message":"no such image"}`))
				return
			}
			_ = json.NewEncoder(w).Encode(system.Info{KernelVersion: kernel, MemTotal: memory, Name: said})
		})
		if got, err := e.sharesFiles(t.Context(), t.TempDir(), os.Args[0]); err != nil || got != want {
			t.Errorf("an engine named %s: %v, %v, want %v", said, got, err, want)
		}
	}
}

// TestAnEngineThatHangs: the end of the context ends the wait for an attachment.
func TestAnEngineThatHangs(t *testing.T) {
	asked, over := make(chan bool, 1), make(chan struct{})
	e := engineAt(t, func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/attach") {
			asked <- true
			<-over
		}
	})
	defer close(over)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the rollout is cancelled")
	go func() {
		<-asked
		cancel(gone)
	}()
	if err := (&attachment{}).listen(ctx, &instance{engine: e, name: "c", id: "c"}); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}
