package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
)

// inCluster returns the settings for a namespace in which the API server denies the first
// requests, or none of them, and forbids pods with these words, if there are any.
func inCluster(t *testing.T, denied int32, refusal string) sandboxes.Host {
	t.Helper()
	var asked atomic.Int32
	forbid := func(w http.ResponseWriter, text string) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":%q}`, text)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		what := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		if asked.Add(1) <= denied {
			forbid(w, what+` is forbidden: User "turngate" cannot list resource "`+what+`" in API group "" in the namespace "rollouts"`)
			return
		}
		switch {
		case what == "selfsubjectaccessreviews":
			fmt.Fprint(w, `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
		case what == "networkpolicies" && r.Method == http.MethodGet:
			fmt.Fprint(w, `{"kind":"NetworkPolicyList","apiVersion":"networking.k8s.io/v1"}`)
		case what == "networkpolicies":
			fmt.Fprint(w, `{"kind":"NetworkPolicy","apiVersion":"networking.k8s.io/v1"}`)
		case what == "pods" && r.Method == http.MethodGet:
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1"}`)
		case what == "pods" && refusal != "":
			forbid(w, refusal)
		case what == "pods":
			fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1"}`)
		default:
			t.Errorf("an unexpected request: %s %s", r.Method, r.URL)
		}
	}))
	t.Cleanup(server.Close)
	config := filepath.Join(t.TempDir(), "config")
	harness.Must(t, os.WriteFile(config, []byte(`{clusters: [{name: c, cluster: {server: "`+server.URL+`"}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}`), 0o600))
	program, err := os.Executable()
	harness.Must(t, err)
	return sandboxes.Host{Helper: program, Kubernetes: sandboxes.Kubernetes{Namespace: "rollouts", Config: config}}
}

// TestAWorkerWaitsForItsRights: a role is often applied a moment after its worker begins.
func TestAWorkerWaitsForItsRights(t *testing.T) {
	const right, never = `User "turngate" cannot list resource "networkpolicies"`, 1 << 30
	for name, tt := range map[string]struct {
		patience patience
		host     sandboxes.Host
		waits    int    // lines of the log
		fails    string // parts of the error, with a * between them; empty: none
	}{
		"a role that comes late":           {patience{time.Hour, time.Millisecond}, inCluster(t, 3, ""), 1, ""},
		"a role that does not come":        {patience{time.Nanosecond, time.Hour}, inCluster(t, never, ""), 0, right + "*: give this user the role of docs/sandboxes.md; the right was still missing after 1ns"},
		"a command that does not wait":     {patience{}, inCluster(t, 1, ""), 0, right + "*: give this user the role of docs/sandboxes.md"},
		"a setting that the cluster lacks": {patience{time.Hour, time.Hour}, inCluster(t, 0, `pods "turngate-x" is forbidden: violates PodSecurity "restricted:latest"`), 0, "violates PodSecurity*"},
	} {
		var log harness.Buffer
		list, err := tt.patience.open(t.Context(), []string{"kubernetes"}, tt.host, zerolog.New(&log))
		if tt.fails == "" {
			if err != nil || len(list) != 1 {
				t.Errorf("%s: %d backends, %v", name, len(list), err)
			}
		} else if part, end, _ := strings.Cut(tt.fails, "*"); err == nil || !strings.Contains(err.Error(), part) || !strings.HasSuffix(err.Error(), end) {
			t.Errorf("%s: got %v", name, err)
		}
		if got := strings.Count(log.String(), "waiting for a right in the cluster"); got != tt.waits {
			t.Errorf("%s: %d lines, want %d: %s", name, got, tt.waits, log.String())
		}
	}
	over := errors.New("the worker was stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	log := zerolog.New(io.Discard).Hook(zerolog.HookFunc(func(*zerolog.Event, zerolog.Level, string) { stop(over) }))
	if _, err := (patience{time.Hour, time.Hour}).open(ctx, []string{"kubernetes"}, inCluster(t, never, ""), log); !errors.Is(err, over) {
		t.Errorf("a worker that is stopped: %v", err)
	}
}
