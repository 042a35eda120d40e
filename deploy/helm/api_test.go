package helm_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv/kubetest"
)

// paths are the paths of the API server for each kind of object, after the namespace.
var paths = map[string]string{ //nolint:gochecknoglobals // a table
	"ConfigMap": "/api/v1/namespaces/%s/configmaps", "Service": "/api/v1/namespaces/%s/services", "ServiceAccount": "/api/v1/namespaces/%s/serviceaccounts",
	"Deployment": "/apis/apps/v1/namespaces/%s/deployments", "StatefulSet": "/apis/apps/v1/namespaces/%s/statefulsets", "DaemonSet": "/apis/apps/v1/namespaces/%s/daemonsets",
	"PodDisruptionBudget": "/apis/policy/v1/namespaces/%s/poddisruptionbudgets", "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/%s/networkpolicies",
	"Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles", "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings",
	"ServiceMonitor": "/apis/monitoring.coreos.com/v1/namespaces/%s/servicemonitors", "PrometheusRule": "/apis/monitoring.coreos.com/v1/namespaces/%s/prometheusrules",
	"ScaledObject": "/apis/keda.sh/v1alpha1/namespaces/%s/scaledobjects",
}

// dry lets the server check an object as if it made it. A field that the server does not
// know is an error.
const dry = "?dryRun=All&fieldValidation=Strict"

// TestTheAPIServerTakesTheObjects gives the objects of each set of values to a real API
// server, which checks them and makes none, as `helm install --dry-run=server` asks for.
// The kinds of Prometheus and KEDA are ours here, and take any field. The pods are given
// too, to a namespace in which Kubernetes enforces the level restricted.
func TestTheAPIServerTakesTheObjects(t *testing.T) {
	s := kubetest.Serve(t)
	for _, name := range []string{namespace, "open"} {
		labels := map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}
		if name == "open" {
			labels = nil
		}
		s.Ask(t, http.MethodPost, "/api/v1/namespaces", object{"metadata": map[string]any{"name": name, "labels": labels}})
		for _, account := range []string{"default", "mine", "turngate-worker"} {
			s.Ask(t, http.MethodPost, fmt.Sprintf(paths["ServiceAccount"], name), object{"metadata": map[string]any{"name": account}})
		}
	}
	for kind, group := range map[string]string{"ServiceMonitor": "monitoring.coreos.com/v1", "PrometheusRule": "monitoring.coreos.com/v1", "ScaledObject": "keda.sh/v1alpha1"} {
		define(t, s, kind, group)
	}
	try := func(o object, path string) error {
		return s.Try(t.Context(), http.MethodPost, path+dry, o, nil)
	}
	for name, text := range sets {
		objects := render(t, text)
		for _, o := range objects {
			if o["kind"] == "ServiceAccount" {
				o["metadata"].(map[string]any)["name"] = "new" // the other one is there
			}
			if err := try(o, fmt.Sprintf(paths[fmt.Sprint(o["kind"])], o.at("metadata.namespace"))); err != nil {
				t.Errorf("%s: %s: %v", name, o.name(), err)
			}
			if o.at("spec.template") == nil {
				continue
			}
			pod := object{"metadata": map[string]any{"name": "pod", "labels": o.at("spec.template.metadata.labels")}, "spec": o.at("spec.template.spec")}
			if o.at("spec.volumeClaimTemplates") != nil {
				continue // the pod has a volume that the controller adds
			}
			ns := namespace
			if strings.Contains(text, "local") && o["kind"] == "DaemonSet" {
				ns = "open"
				if err := try(pod, "/api/v1/namespaces/"+namespace+"/pods"); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
					t.Errorf("the level restricted is not enforced: %v", err)
				}
			}
			if err := try(pod, "/api/v1/namespaces/"+ns+"/pods"); err != nil {
				t.Errorf("%s: a pod of %s: %v", name, o.name(), err)
			}
		}
	}
	wrong := render(t, "")["Service/turngate-worker"]
	wrong["spec"].(map[string]any)["portz"] = 1
	if err := try(wrong, fmt.Sprintf(paths["Service"], namespace)); err == nil || !strings.Contains(err.Error(), "spec.portz") {
		t.Errorf("the check overlooks an unknown field: %v", err)
	}
	rights(t, s)
}

// define makes a kind of objects with any fields.
func define(t *testing.T, s *kubetest.Server, kind, version string) {
	t.Helper()
	group, version, _ := strings.Cut(version, "/")
	one := strings.ToLower(kind)
	s.Ask(t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": one + "s." + group},
		"spec": map[string]any{
			"group": group, "scope": "Namespaced", "names": map[string]any{"kind": kind, "singular": one, "plural": one + "s"},
			"versions": []any{map[string]any{"name": version, "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
		},
	})
	harness.Eventually(t, "the kind "+kind, 2*time.Minute, func() bool {
		return s.Try(t.Context(), http.MethodGet, fmt.Sprintf(paths[kind], namespace), nil, nil) == nil
	})
}

// rights makes the role of the workers, and asks the server for their rights.
func rights(t *testing.T, s *kubetest.Server) {
	t.Helper()
	objects := render(t, "")
	for _, name := range []string{"Role/turngate-worker", "RoleBinding/turngate-worker"} {
		o := objects[name]
		s.Ask(t, http.MethodPost, fmt.Sprintf(paths[fmt.Sprint(o["kind"])], o.at("metadata.namespace")), o)
	}
	may := func(namespace, verb, group, resource, sub string) bool {
		t.Helper()
		review := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:turngate:turngate-worker", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:turngate", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: sub},
		}}
		harness.Must(t, s.Try(t.Context(), http.MethodPost, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &review, &review))
		return review.Status.Allowed
	}
	harness.Eventually(t, "the role of the workers", 2*time.Minute, func() bool { return may(kubetest.Namespace, "create", "", "pods", "") })
	if !may(kubetest.Namespace, "create", "", "pods", "exec") || !may(kubetest.Namespace, "list", "networking.k8s.io", "networkpolicies", "") {
		t.Error("a worker may not make sandboxes")
	}
	if may(namespace, "create", "", "pods", "") || may(namespace, "create", "", "pods", "exec") || may(kubetest.Namespace, "get", "", "secrets", "") || may(namespace, "get", "", "secrets", "") || may(kubetest.Namespace, "delete", "networking.k8s.io", "networkpolicies", "") {
		t.Error("a worker may do more than make sandboxes")
	}
}
