package helm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// TestLint checks the chart as `helm lint --strict` does, with each set of values.
func TestLint(t *testing.T) {
	version, err := common.ParseKubeVersion(usual.kubernetes)
	harness.Must(t, err)
	for name, text := range sets {
		for _, m := range lint.RunAll(chartDir, values(t, text), namespace, lint.WithKubeVersion(version)).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

// TestObjects compares the objects of each set of values.
func TestObjects(t *testing.T) {
	for name, want := range map[string]string{
		"default":    "Deployment/turngate-metrics NetworkPolicy/turngate NetworkPolicy/turngate-worker PodDisruptionBudget/turngate-worker Role/turngate-worker RoleBinding/turngate-worker Service/turngate-metrics Service/turngate-worker ServiceAccount/turngate-worker StatefulSet/turngate-worker",
		"deployment": "Deployment/turngate-metrics Deployment/turngate-worker NetworkPolicy/turngate PodDisruptionBudget/turngate-worker Service/turngate-metrics Service/turngate-worker ServiceAccount/turngate-worker",
		"daemonset":  "DaemonSet/turngate-worker Deployment/turngate-metrics NetworkPolicy/turngate Service/turngate-metrics Service/turngate-worker ServiceAccount/turngate-worker",
		"closed":     "NetworkPolicy/turngate NetworkPolicy/turngate-worker Role/turngate-worker RoleBinding/turngate-worker Service/turngate-worker StatefulSet/turngate-worker",
		"front":      "Deployment/turngate-serve PodDisruptionBudget/turngate-serve Service/turngate-serve Service/turngate-serve-metrics",
		"all": "Deployment/turngate-console Deployment/turngate-metrics Deployment/turngate-serve NetworkPolicy/turngate NetworkPolicy/turngate-serve NetworkPolicy/turngate-worker PodDisruptionBudget/turngate-serve PodDisruptionBudget/turngate-worker " +
			"PrometheusRule/turngate Role/turngate-worker RoleBinding/turngate-worker ScaledObject/turngate-worker Service/turngate-console Service/turngate-metrics Service/turngate-serve Service/turngate-serve-metrics Service/turngate-worker ServiceAccount/turngate-worker ServiceMonitor/turngate StatefulSet/turngate-worker",
	} {
		if got := strings.Join(slices.Sorted(maps.Keys(render(t, sets[name]))), " "); got != want {
			t.Errorf("%s: got  %s\nwant %s", name, got, want)
		}
	}
}

// TestRefusals gives values that are wrong. The error names the value.
func TestRefusals(t *testing.T) {
	c := load(t, chartDir)
	for text, want := range map[string]string{
		"{wroker: {}}":                                             "additional properties 'wroker' not allowed",
		"{worker: {kind: ReplicaSet}}":                             "at '/worker/kind': value must be one of 'StatefulSet', 'Deployment', 'DaemonSet'",
		"{worker: {slots: many}}":                                  "at '/worker/slots'",
		"{worker: {slots: 0}}":                                     "at '/worker/slots'",
		"{worker: {sandboxes: [podman]}}":                          "at '/worker/sandboxes/0': value must be one of 'kubernetes', 'local'",
		"{worker: {sandboxes: []}}":                                "at '/worker/sandboxes': minItems: got 0, want 1",
		"{worker: {graceSeconds: 30s}}":                            "at '/worker/graceSeconds': got string, want integer",
		"{worker: {streamReplicas: 2}}":                            "at '/worker/streamReplicas': value must be one of 0, 1, 3",
		"{worker: {flags: {--max-cpus: 2}}}":                       `worker.flags: "--max-cpus" is not valid: want the name of a flag without --`,
		"{worker: {flags: {max-cpus: {}}}}":                        "at '/worker/flags/max-cpus'",
		"{image: {digest: latest}}":                                "at '/image/digest'",
		"{image: {pullPolicy: Sometimes}}":                         "at '/image/pullPolicy': value must be one of 'Always', 'IfNotPresent', 'Never'",
		"{console: {port: 70000}}":                                 "at '/console/port': maximum: got 70,000, want 65,535",
		"{console: {port: 9464}}":                                  "console.port: 9464 is the port of the console's metrics",
		"{serve: {from: []}}":                                      "at '/serve/from': minItems: got 0, want 1",
		"{worker: {extraEnv: [{value: a}]}}":                       "at '/worker/extraEnv/0': missing property 'name'",
		"{worker: {flags: {slots: 4}}}":                            "worker.flags: the chart sets --slots itself: use worker.slots",
		"{worker: {flags: {context: lab}}}":                        "worker.flags: the chart sets --context itself",
		"{worker: {kind: Deployment}}":                             "worker.kind: a Deployment has pods without fixed names",
		"{nats: {url: 'nats://u:p@nats'}}":                         "nats.url: it has a user, whose password everyone could read",
		"{nats: {url: 'nats:4222'}}":                               `nats.url: "nats:4222" is not valid: want servers such as nats://nats:4222`,
		"{nats: {url: ''}}":                                        "at '/nats/url': minLength: got 0, want 1",
		"{worker: {state: {size: 1Gi}, kind: DaemonSet}}":          "worker.state.size: only a StatefulSet has a claim for each worker",
		"{worker: {kubernetes: {namespace: turngate}}}":            "worker.kubernetes.namespace: turngate is the namespace of the release",
		"{worker: {serviceAccount: {create: false}}}":              "worker.serviceAccount.name: the rights to make sandboxes would go to the account default",
		"{worker: {keda: {enabled: true}, kind: DaemonSet}}":       "worker.keda.enabled: a DaemonSet has one worker on each node",
		"{worker: {keda: {enabled: true}, slots: auto}}":           "worker.keda.enabled: the number of workers",
		"{worker: {keda: {enabled: true, minReplicas: 20}}}":       "worker.keda.minReplicas: 20 is more than worker.keda.maxReplicas, 10",
		"{worker: {keda: {enabled: true, prometheus: prom:9090}}}": "at '/worker/keda/prometheus'",
		"{serviceMonitor: {interval: often}}":                      "at '/serviceMonitor/interval'",
		"{worker: {podDisruptionBudget: {maxUnavailable: a few}}}": "at '/worker/podDisruptionBudget/maxUnavailable'",
		"{worker: {agentsVolume: {emptyDir: {}, hostPath: {}}}}":   "at '/worker/agentsVolume': maxProperties: got 2, want 1",
		"{networkPolicy: {metricsFrom: {podSelector: {}}}}":        "at '/networkPolicy/metricsFrom': got object, want array",
	} {
		if _, err := tryRender(t, c, text, usual); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v\nwant %s", text, err, want)
		}
	}
}

// TestKubernetesVersions renders the sandbox local for clusters that may ignore the users
// of its pods, and for others.
func TestKubernetesVersions(t *testing.T) {
	c := load(t, chartDir)
	for version, ok := range map[string]bool{"v1.30.0": false, "v1.32.9-eks-1a2b3c4": false, "v1.33.0": true, "v1.33.0-gke.1245000": true, "v1.34.1+k3s1": true, "v1.40.0": true} {
		_, err := tryRender(t, c, sets["daemonset"], target{"turngate", namespace, version})
		if ok != (err == nil) || !ok && !strings.Contains(err.Error(), "worker.sandboxes: local needs Kubernetes 1.33 or later, and this is "+version) {
			t.Errorf("%s: %v", version, err)
		}
		if _, err := tryRender(t, c, "", target{"turngate", namespace, version}); err != nil {
			t.Errorf("%s, sandbox kubernetes: %v", version, err)
		}
	}
	// Without its rights a worker may have any account.
	if _, err := tryRender(t, c, "{worker: {sandboxes: [machine], serviceAccount: {create: false}}}", usual); err != nil {
		t.Error(err)
	}
}

// TestPortsOfNATS compares the ports by which the pods reach NATS with those that a
// client takes for the URL.
func TestPortsOfNATS(t *testing.T) {
	for url, want := range map[string]string{
		"nats://nats": "[map[port:4222]]", "tls://nats": "[map[port:4222]]", "ws://nats": "[map[port:80]]", "wss://nats": "[map[port:443]]",
		"wss://a:9222,wss://b": "[map[port:443] map[port:9222]]", "nats://[2001:db8::1]": "[map[port:4222]]", "ws://[2001:db8::1]:81": "[map[port:81]]",
	} {
		rules := render(t, fmt.Sprintf("{nats: {url: %q}}", url))["NetworkPolicy/turngate"].at("spec.egress").([]any)
		if got := fmt.Sprint(object(rules[1].(map[string]any))["ports"]); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

// read returns the values of a YAML file of the repository.
func read(t *testing.T, path string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testenv.Root(t), path))
	harness.Must(t, err)
	return values(t, string(data))
}

// TestOneSource compares the rights, the alerts and the query of the autoscaler with those
// of the rest of the repository.
func TestOneSource(t *testing.T) {
	objects := render(t, sets["all"])
	if got, want := objects["Role/turngate-worker"]["rules"], read(t, "deploy/kubernetes/role.yaml")["rules"]; want == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the rights differ from deploy/kubernetes/role.yaml: %v", got)
	}
	if got, want := objects["PrometheusRule/turngate"].at("spec.groups"), read(t, "deploy/prometheus/rules.yml")["groups"]; want == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the alerts differ from deploy/prometheus/rules.yml: %v", got)
	}
	page, err := os.ReadFile(filepath.Join(testenv.Root(t), "docs", "metrics.md"))
	harness.Must(t, err)
	trigger, _ := json.Marshal(objects["ScaledObject/turngate-worker"].at("spec.triggers"))
	var triggers []struct {
		Metadata struct{ Query, Threshold string }
	}
	harness.Must(t, json.Unmarshal(trigger, &triggers))
	if len(triggers) != 1 || !bytes.Contains(page, []byte("`"+triggers[0].Metadata.Query+"`")) || triggers[0].Metadata.Threshold != "8" {
		t.Errorf("docs/metrics.md has another query: %+v", triggers)
	}
}
