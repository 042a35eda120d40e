package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/kubernetes"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
)

// TestAPodIsRemovedAfterItsCreationWasAnswered: the API server may make a pod although its
// request was cancelled. A removal before the pod exists would leave it for an hour.
func TestAPodIsRemovedAfterItsCreationWasAnswered(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("the rollout was cancelled")
	var making, early, removed atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch what := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]; {
		case what == "networkpolicies" && r.Method == http.MethodGet:
			fmt.Fprint(w, `{"kind":"NetworkPolicyList","apiVersion":"networking.k8s.io/v1"}`)
		case what == "networkpolicies":
			fmt.Fprint(w, `{"kind":"NetworkPolicy","apiVersion":"networking.k8s.io/v1"}`)
		case what == "pods" && r.Method == http.MethodPost:
			making.Store(true)
			cancel(over)
			select {
			case <-r.Context().Done(): // the client has left
			case <-time.After(200 * time.Millisecond):
			}
			making.Store(false)
			fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1"}`)
		case r.Method == http.MethodDelete:
			early.Store(making.Load())
			removed.Store(true)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1"}`)
		default:
			t.Errorf("an unexpected request: %s %s", r.Method, r.URL)
		}
	}))
	defer server.Close()
	config := filepath.Join(t.TempDir(), "config")
	harness.Must(t, os.WriteFile(config, []byte(`{clusters: [{name: c, cluster: {server: "`+server.URL+`"}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}`), 0o600))
	program, err := os.Executable()
	harness.Must(t, err)
	b, err := kubernetes.Kind().New(sandboxes.Host{Helper: program, Kubernetes: sandboxes.Kubernetes{Namespace: "rollouts", Config: config}})
	harness.Must(t, err)
	if _, err := b.Create(ctx, sandboxes.Spec{Owner: "w1", Rollout: "alpha-1", Attempt: 1, Image: "debian:12"}); !errors.Is(err, over) {
		t.Errorf("got %v", err)
	}
	if !removed.Load() || early.Load() {
		t.Errorf("removed: %t, before the creation was answered: %t", removed.Load(), early.Load())
	}
}
