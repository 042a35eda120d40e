package helm_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"

	"github.com/turngate/turngate/internal/harness"
)

const (
	chartDir  = "turngate"
	namespace = "turngate" // of the release
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // Helm names each link of the chart
	m.Run()
}

// sets are values with which the chart must work.
var sets = map[string]string{ //nolint:gochecknoglobals // a table
	"default":    "",
	"deployment": "{worker: {kind: Deployment, credentials: {shared: workers.creds}, sandboxes: [machine], slots: auto}}",
	"daemonset":  "{worker: {kind: DaemonSet, sandboxes: [local], nodeSelector: {pool: agents}, agentsVolume: {hostPath: {path: /opt/turngate}}}}",
	"keda":       "{worker: {keda: {enabled: true, maxReplicas: 40}, slots: 16, state: {size: 20Gi, storageClassName: fast}}}",
	"flags": `{worker: {graceSeconds: 3600, streamReplicas: 3, flags: {max-cpus: 2.5, trainer-queue: 2000000, allow-shell: true, kubernetes-runtime-class: gvisor, kubernetes-toleration: ["pool", "gpu=yes:NoSchedule"]}},
		image: {repository: registry.example/turngate, digest: "sha256:` + strings.Repeat("0", 64) + `"}, imagePullSecrets: [{name: registry}], nats: {url: "tls://a:4222,tls://b:4333"}}`,
	"all": `{console: {enabled: true, readOnly: true}, serve: {enabled: true, events: true}, serviceMonitor: {enabled: true, labels: {release: prometheus}}, prometheusRule: {enabled: true}, worker: {keda: {enabled: true},
		podAnnotations: {a: b}, podLabels: {c: d}, tolerations: [{key: pool}], affinity: {podAntiAffinity: {}}, priorityClassName: system-cluster-critical, extraEnv: [{name: E2B_API_KEY_FILE, value: /e2b/key}],
		extraVolumes: [{name: e2b, secret: {secretName: e2b}}], extraVolumeMounts: [{name: e2b, mountPath: /e2b}]}, networkPolicy: {extraEgress: [{}]}}`,
	"closed": "{networkPolicy: {metricsFrom: []}, worker: {serviceAccount: {create: false, name: mine}, podDisruptionBudget: {enabled: false}}, metrics: {enabled: false}}",
	"front":  "{worker: {enabled: false}, metrics: {enabled: false}, serve: {enabled: true}, networkPolicy: {enabled: false}}",
}

// object is an object of Kubernetes.
type object map[string]any

// at returns the value at a path of keys, such as spec.template; nil: there is none.
func (o object) at(path string) any {
	var v any = map[string]any(o)
	for key := range strings.SplitSeq(path, ".") {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}

func (o object) name() string { return fmt.Sprint(o["kind"], "/", o.at("metadata.name")) }

func load(t *testing.T, dir string) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(dir)
	harness.Must(t, err)
	return c
}

func values(t *testing.T, text string) map[string]any {
	t.Helper()
	v := map[string]any{}
	harness.Must(t, yaml.Unmarshal([]byte(text), &v))
	return v
}

// target is a release and its cluster.
type target struct{ name, namespace, kubernetes string }

// usual is the target of most tests, with the first Kubernetes that has all that the
// chart may need.
var usual = target{"turngate", namespace, "v1.33.0"} //nolint:gochecknoglobals // a constant

// tryRender renders the chart with values, as `helm template` does.
func tryRender(t *testing.T, c *chart.Chart, text string, to target) (map[string]string, error) {
	t.Helper()
	version, err := common.ParseKubeVersion(to.kubernetes)
	harness.Must(t, err)
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	v, err := util.ToRenderValues(c, values(t, text), common.ReleaseOptions{Name: to.name, Namespace: to.namespace, Revision: 1, IsInstall: true}, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, v)
}

// render returns the objects of the chart, by kind and name.
func render(t *testing.T, text string) map[string]object {
	t.Helper()
	return renderTo(t, text, usual)
}

func renderTo(t *testing.T, text string, to target) map[string]object {
	t.Helper()
	files, err := tryRender(t, load(t, chartDir), text, to)
	harness.Must(t, err)
	objects := map[string]object{}
	for file, content := range files {
		if !strings.HasSuffix(file, ".yaml") {
			continue
		}
		for part := range strings.SplitSeq("\n"+content, "\n---\n") {
			o := object{}
			if err := yaml.UnmarshalStrict([]byte(part), &o); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, part)
			}
			if len(o) == 0 {
				continue
			}
			if objects[o.name()] != nil {
				t.Errorf("%s exists twice", o.name())
			}
			objects[o.name()] = o
		}
	}
	return objects
}
