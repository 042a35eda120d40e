package kubernetes_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/kubernetes"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/kubetest"
	"github.com/turngate/turngate/sandboxes"
)

// TestAMissingRight takes each right from the role of a user of a real API server. A right
// that is missing is told apart from a setting that the cluster forbids.
func TestAMissingRight(t *testing.T) {
	const role = "/apis/rbac.authorization.k8s.io/v1/namespaces/" + kubetest.Namespace + "/roles/turngate-sandboxes"
	c := kubetest.Serve(t)
	var now map[string]any
	harness.Must(t, c.Try(t.Context(), http.MethodGet, role, nil, &now))
	rules := now["rules"].([]any)
	program, err := os.Executable()
	harness.Must(t, err)
	check := func(s sandboxes.Kubernetes) error {
		s.Namespace, s.Config = kubetest.Namespace, c.Config
		b, err := kubernetes.Kind().New(sandboxes.Host{Helper: program, Kubernetes: s})
		harness.Must(t, err)
		return b.Check(t.Context())
	}
	give := func(rules []any) {
		c.Ask(t, http.MethodPut, role, map[string]any{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": map[string]any{"name": "turngate-sandboxes"}, "rules": rules})
	}
	for i, says := range []string{`cannot list resource "pods"`, "this user may not get pods/exec", `cannot list resource "networkpolicies"`} {
		give(append(append([]any{}, rules[:i]...), rules[i+1:]...))
		harness.Eventually(t, says, 5*time.Minute, func() bool {
			err := check(sandboxes.Kubernetes{})
			return kubernetes.IsDenied(err) && strings.Contains(err.Error(), says) && strings.HasSuffix(err.Error(), ": give this user the role of docs/sandboxes.md")
		})
		give(rules)
		harness.Eventually(t, "the role", 5*time.Minute, func() bool { return check(sandboxes.Kubernetes{}) == nil })
	}
	if err := check(sandboxes.Kubernetes{RuntimeClass: "gvisor"}); err == nil || kubernetes.IsDenied(err) || !strings.Contains(err.Error(), "gvisor") {
		t.Errorf("a runtime class that the cluster lacks: %v", err)
	}
}
