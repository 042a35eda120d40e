package docker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
)

// oneContainer is an engine with one container, which makes no other one.
type oneContainer struct {
	engine
	removed atomic.Bool
}

// newOneContainer makes the engine. Its container has these labels; creations get the status.
func newOneContainer(t *testing.T, labels map[string]string, status int) *oneContainer {
	t.Helper()
	e := &oneContainer{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch at := r.Method + " " + r.URL.Path[strings.Index(r.URL.Path, "/containers"):]; {
		case at == "POST /containers/create":
			w.WriteHeader(status)
			fmt.Fprint(w, `{"message":"the test refuses it"}`)
		case e.removed.Load() && at != "POST /containers/c1/wait":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message":"no such container"}`)
		case at == "GET /containers/name/json":
			_ = json.NewEncoder(w).Encode(container.InspectResponse{ContainerJSONBase: &container.ContainerJSONBase{ID: "c1"}, Config: &container.Config{Labels: labels}})
		case r.Method == http.MethodDelete:
			e.removed.Store(true)
			w.WriteHeader(http.StatusNoContent)
		case at == "POST /containers/c1/wait":
			fmt.Fprint(w, `{"StatusCode":0}`)
		default:
			t.Errorf("an unexpected request: %s", at)
		}
	}))
	t.Cleanup(server.Close)
	api, err := client.NewClientWithOpts(client.WithHost("tcp://"+server.Listener.Addr().String()), client.WithVersion("1.45"))
	harness.Must(t, err)
	t.Cleanup(func() { api.Close() })
	e.api = api
	return e
}

// TestACreationRemovesNoContainerOfSomeoneElse: workers of several hosts, and other programs,
// share an engine. A container of the same name stays unless it has the labels of the one that was to be made.
func TestACreationRemovesNoContainerOfSomeoneElse(t *testing.T) {
	t.Parallel()
	s := sandboxes.Spec{Owner: "w1", Rollout: "alpha-1", Attempt: 2}
	other := s
	other.Owner = "w2"
	for name, labels := range map[string]map[string]string{"none": nil, "of another worker": labels(other), "its own": labels(s)} {
		for _, status := range []int{http.StatusInternalServerError, http.StatusConflict} {
			e := newOneContainer(t, labels, status)
			in := instance{engine: e.engine, name: "name"}
			err := in.create(t.Context(), &limits{}, &s, func() settings {
				cfg, host := containerConfig(s, "image", nil)
				return settings{config: cfg, host: host}
			})
			if err == nil || in.id != "" || status == http.StatusConflict && !errdefs.IsConflict(err) {
				t.Errorf("%s, %d: made %q, %v", name, status, in.id, err)
			}
			if want := name == "its own"; e.removed.Load() != want {
				t.Errorf("%s, %d: removed: %t, want %t", name, status, e.removed.Load(), want)
			}
		}
	}
}
