package helm_test

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"

	"github.com/turngate/turngate/internal/harness"
)

// custom has those names of an object of Prometheus or KEDA that come from values.
type custom struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ObjectMeta
	Spec            struct {
		Selector       metav1.LabelSelector
		ScaleTargetRef struct{ Name string }
	}
}

// TestTypes reads the objects of each set of values as the API's types have them, with
// names that YAML takes for numbers, truth values and null.
func TestTypes(t *testing.T) {
	types := map[string]func() any{
		"Deployment": func() any { return &appsv1.Deployment{} }, "StatefulSet": func() any { return &appsv1.StatefulSet{} }, "DaemonSet": func() any { return &appsv1.DaemonSet{} },
		"Service": func() any { return &corev1.Service{} }, "ServiceAccount": func() any { return &corev1.ServiceAccount{} },
		"NetworkPolicy": func() any { return &networkingv1.NetworkPolicy{} }, "PodDisruptionBudget": func() any { return &policyv1.PodDisruptionBudget{} },
		"Role": func() any { return &rbacv1.Role{} }, "RoleBinding": func() any { return &rbacv1.RoleBinding{} },
	}
	names := values(t, `{fullnameOverride: "1234", nameOverride: "null", image: {repository: "12", tag: "30"}, operator: {secret: "1", key: "on"}, serve: {tokensSecret: "2", tlsSecret: "3"},
		worker: {kubernetes: {namespace: "off"}, serviceAccount: {name: "1e3"}, credentials: {secret: "4"}}}`)
	for name, text := range sets {
		merged, err := yaml.Marshal(loader.MergeMaps(values(t, text), names))
		harness.Must(t, err)
		for _, o := range renderTo(t, string(merged), target{"1234", "on", usual.kubernetes}) {
			data, err := json.Marshal(o)
			harness.Must(t, err)
			kind, _ := o["kind"].(string)
			if known, ok := types[kind]; ok {
				err = yaml.UnmarshalStrict(data, known())
			} else {
				err = json.Unmarshal(data, &custom{})
			}
			if err != nil {
				t.Errorf("%s: %s: %v", name, o.name(), err)
			}
			if ns := o.at("metadata.namespace"); ns != "on" && (ns != "off" || kind != "Role" && kind != "RoleBinding") {
				t.Errorf("%s: %s is in the namespace %v", name, o.name(), ns)
			}
			if instance := o.at("metadata.labels").(map[string]any)["app.kubernetes.io/instance"]; instance != "1234" {
				t.Errorf("%s: the instance of %s is %v", name, o.name(), instance)
			}
		}
	}
}
