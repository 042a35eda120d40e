package helm_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/replay"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/kubetest"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// release is the chart in a cluster, with a trainer that answers from the script of the
// task hello.
type release struct {
	cluster *kubetest.Cluster
	objects []object // of the chart, and the pods of its workloads
	nats    testenv.NATS
	trainer *trainer.Trainer
	request schema.Request
	image   string        // of the chart's pods
	held    chan struct{} // the first call of the rollout alpha-held is there
	token   string        // of the trainer, for the front
}

// TestTheReleaseRunsRollouts makes the objects of the chart in a cluster, and the pods of
// its workloads, as their controllers do in a whole cluster. The workers run a rollout, in
// a pod that they make with the rights of the chart's role. A worker whose pod is deleted
// gives its rollout back. The front lists the rollouts over HTTPS, and each pod has metrics.
// At the end nothing of the release is left.
func TestTheReleaseRunsRollouts(t *testing.T) {
	r := &release{image: "turngate-test-helm:" + strings.ToLower(rand.Text()), held: make(chan struct{}, 1), token: rand.Text()}
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", r.image).Run() }) // when the cluster has ended
	r.cluster, r.nats = kubetest.Start(t), testenv.StartNATS(t, "alpha")
	r.fill(t)
	r.connect(t)
	r.install(t)
	if res := r.run(t, "alpha-first"); !strings.HasPrefix(res.Worker, "turngate-worker-") {
		t.Errorf("the worker is %s", res.Worker)
	}
	r.drain(t)
	r.read(t)
	r.uninstall(t)
}

// fill makes the namespace of the release and the Secrets, as README.md tells.
func (r *release) fill(t *testing.T) {
	t.Helper()
	r.cluster.MakeNamespace(t, namespace)
	workers := map[string][]byte{}
	for _, name := range []string{"turngate-worker-0", "turngate-worker-1"} {
		workers["worker-"+name+".nk"] = credential(t, r.nats.AdmitWorker(t, name))
	}
	pki := t.TempDir()
	testenv.Certificates(t, pki)
	for name, data := range map[string]map[string][]byte{
		"turngate-workers": workers, "turngate-operator": {"ops.nk": credential(t, r.nats.OpsCreds())},
		"turngate-tokens": {
			"tokens.yaml":      fmt.Appendf(nil, "- {trainer: alpha, sha256: %x, creds: trainer-alpha.nk}\n", sha256.Sum256([]byte(r.token))),
			"trainer-alpha.nk": credential(t, r.nats.TrainerCreds("alpha")),
		},
		"turngate-serve-tls": {"tls.crt": credential(t, filepath.Join(pki, "server.pem")), "tls.key": credential(t, filepath.Join(pki, "server-key.pem"))},
	} {
		r.cluster.Ask(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/secrets", corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data})
	}
}

func credential(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	harness.Must(t, err)
	return data
}

// connect starts the trainer. It never answers the first attempt of the rollout alpha-held.
func (r *release) connect(t *testing.T) {
	t.Helper()
	task, err := tasks.Load(filepath.Join(testenv.Root(t), "examples/tasks/hello"), tasks.Options{})
	harness.Must(t, err)
	text, err := task.ReplayScript()
	harness.Must(t, err)
	script, err := replay.Parse(text)
	harness.Must(t, err)
	r.trainer, err = trainer.Dial(t.Context(), trainer.Config{Broker: r.nats.Trainer(t, "alpha"), Name: "alpha", Log: zerolog.Nop()})
	harness.Must(t, err)
	t.Cleanup(r.trainer.Close)
	bundle, err := r.trainer.PutBundle(t.Context(), task.Bundle)
	harness.Must(t, err)
	r.request = task.Request
	r.request.Trainer, r.request.Task.Bundle, r.request.Agent.Name = "alpha", bundle, "mini"
	r.request.Sandbox.Backend, r.request.Sandbox.Image = "kubernetes", r.cluster.Image
	r.request.MaxAttempts = 1 // a counted one would be the last
	served := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		defer close(served)
		_ = r.trainer.Serve(ctx, func(ctx context.Context, c *trainer.Call) (*schema.Reply, error) {
			if strings.HasPrefix(c.Key, "alpha-held/1/") {
				select {
				case r.held <- struct{}{}:
				default:
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return script.Answer(ctx, &c.Call)
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-served
	})
}

// install makes the objects of the chart, with an image of this turngate and a server of
// NATS that pods reach, and waits until all pods are ready.
func (r *release) install(t *testing.T) {
	t.Helper()
	r.build(t)
	repository, tag, _ := strings.Cut(r.image, ":")
	url := "nats://" + r.cluster.Show(t, strings.TrimPrefix(r.nats.URL(), "nats://"))
	for _, o := range render(t, fmt.Sprintf("{image: {repository: %q, tag: %q}, nats: {url: %q}, worker: {graceSeconds: 1}, console: {enabled: true}, serve: {enabled: true, replicas: 1, events: true}}", repository, tag, url)) {
		r.objects = append(r.objects, o)
	}
	for _, o := range r.objects {
		r.cluster.Ask(t, http.MethodPost, collection(o), o)
	}
	for _, o := range r.objects {
		if o.at("spec.template") == nil {
			continue
		}
		for i := range int(o.at("spec.replicas").(float64)) {
			name := fmt.Sprintf("%s-%d", o.at("metadata.name"), i)
			spec := maps.Clone(o.at("spec.template.spec").(map[string]any))
			spec["hostname"] = name
			pod := object{"kind": "Pod", "metadata": map[string]any{"name": name, "namespace": namespace, "labels": o.at("spec.template.metadata.labels")}, "spec": spec}
			r.cluster.Ask(t, http.MethodPost, collection(pod), pod)
			r.objects = append(r.objects, pod)
		}
	}
	defer func() {
		if t.Failed() {
			r.explain(t)
		}
	}()
	harness.Eventually(t, "pods that are ready", 5*time.Minute, func() bool {
		ready := 0
		for _, p := range r.pods(t) {
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		return ready == 5 // two workers, the queue metrics, the console and the front
	})
}

// collection is the path at which an object is made.
func collection(o object) string {
	if o["kind"] == "Pod" {
		return "/api/v1/namespaces/" + namespace + "/pods"
	}
	return fmt.Sprintf(paths[fmt.Sprint(o["kind"])], o.at("metadata.namespace"))
}

// build builds the image of the chart's pods with deploy/docker/Dockerfile.
func (r *release) build(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	harness.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	harness.Must(t, exec.Command("cp", testenv.Binary(t), filepath.Join(dir, "bin", "turngate")).Run())
	build := exec.Command("docker", "build", "-q", "-f", filepath.Join(testenv.Root(t), "deploy/docker/Dockerfile"), "--build-arg", "BASE="+r.cluster.Image, "-t", r.image, dir)
	build.Env = append(build.Environ(), "DOCKER_BUILDKIT=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("docker build: %v\n%s", err, out)
	}
}

// explain logs the state and the output of each pod.
func (r *release) explain(t *testing.T) {
	t.Helper()
	for _, p := range r.pods(t) {
		t.Logf("%s/%s: %s %s\n%s", p.Namespace, p.Name, p.Status.Phase, p.Status.Message, r.cluster.Output(t, &p))
	}
}

// pods returns the pods of all namespaces.
func (r *release) pods(t *testing.T) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	harness.Must(t, r.cluster.Try(t.Context(), http.MethodGet, "/api/v1/pods", nil, list))
	return list.Items
}

// run submits a rollout of the task and returns its result, which must have the reward 1.
func (r *release) run(t *testing.T, id schema.ID) schema.Result {
	t.Helper()
	r.submit(t, id)
	return r.result(t, id)
}

func (r *release) submit(t *testing.T, id schema.ID) {
	t.Helper()
	q := r.request
	q.ID = id
	harness.Must(t, r.trainer.Submit(t.Context(), []schema.Request{q}))
}

func (r *release) result(t *testing.T, id schema.ID) schema.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	res, err := r.trainer.NextResult(ctx)
	if err != nil {
		r.explain(t)
		t.Fatalf("the result of %s: %v", id, err)
	}
	if res.ID != id || res.Status != schema.StatusDone || res.Fault != nil || res.Reward == nil || *res.Reward != 1 || res.Calls[schema.TagAgent].Count != 2 {
		t.Fatalf("got %+v", res)
	}
	return res
}

// drain deletes the pod of a worker while an agent waits for its model. The rollout goes
// back without a counted attempt, and another worker runs it.
func (r *release) drain(t *testing.T) {
	t.Helper()
	r.submit(t, "alpha-held")
	select {
	case <-r.held:
	case <-time.After(5 * time.Minute):
		r.explain(t)
		t.Fatal("the rollout makes no call")
	}
	before, err := r.nats.Ops(t).Records.State(t.Context(), "alpha-held")
	harness.Must(t, err)
	r.cluster.Ask(t, http.MethodDelete, "/api/v1/namespaces/"+namespace+"/pods/"+before.Worker, nil)
	if res := r.result(t, "alpha-held"); res.Attempt != 2 || res.Worker == before.Worker {
		t.Errorf("it ended in attempt %d at the worker %s", res.Attempt, res.Worker)
	}
}

// read asks the front for the rollouts of the trainer, and each pod for its metrics.
func (r *release) read(t *testing.T) {
	t.Helper()
	metrics := map[string]string{"worker": "turngate_worker_slots", "metrics": "turngate_queue_depth", "console": "turngate_build_info", "serve": "turngate_http_requests_total"}
	for _, p := range r.pods(t) {
		component := p.Labels["app.kubernetes.io/component"]
		if p.Namespace != namespace || p.DeletionTimestamp != nil { // it is a sandbox, or the worker that drain has deleted
			continue
		}
		if component == "serve" {
			if page := r.page(t, "https://"+net.JoinHostPort(p.Status.PodIP, "8420")+"/v1/rollouts"); !strings.Contains(page, "alpha-first") || !strings.Contains(page, "alpha-held") {
				t.Errorf("the front lists %s", page)
			}
		}
		if want := metrics[component]; !strings.Contains(r.page(t, "http://"+net.JoinHostPort(p.Status.PodIP, "9464")+"/metrics"), "\n"+want) {
			t.Errorf("%s: no metric %s", p.Name, want)
		}
		delete(metrics, component)
	}
	if len(metrics) > 0 {
		t.Errorf("no pods of %v", metrics)
	}
}

// page reads a page of a pod with the token of the trainer.
func (r *release) page(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	harness.Must(t, err)
	req.Header.Set("Authorization", "Bearer "+r.token)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // its name is that of a Service
	res, err := client.Do(req)
	harness.Must(t, err)
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	harness.Must(t, err)
	return string(data)
}

// uninstall deletes all that install has made, and looks for other objects of the release
// and for pods of sandboxes.
func (r *release) uninstall(t *testing.T) {
	t.Helper()
	for _, o := range r.objects {
		err := r.cluster.Try(t.Context(), http.MethodDelete, collection(o)+"/"+fmt.Sprint(o.at("metadata.name")), nil, nil)
		if err != nil && !strings.Contains(err.Error(), "404") { // drain has deleted a pod
			t.Error(err)
		}
	}
	all := map[string]string{"ReplicaSet": "/apis/apps/v1/namespaces/%s/replicasets", "Secret": "/api/v1/namespaces/%s/secrets", "PersistentVolumeClaim": "/api/v1/namespaces/%s/persistentvolumeclaims", "Pod": "/api/v1/namespaces/%s/pods"}
	for kind, path := range paths {
		if !strings.Contains(path, "monitoring.coreos.com") && !strings.Contains(path, "keda.sh") { // the cluster has none
			all[kind] = path
		}
	}
	harness.Eventually(t, "the end of all objects of the release and of all sandboxes", 2*time.Minute, func() bool {
		for _, path := range all {
			for _, ns := range []string{namespace, kubetest.Namespace} {
				list := &metav1.PartialObjectMetadataList{}
				harness.Must(t, r.cluster.Try(t.Context(), http.MethodGet, fmt.Sprintf(path, ns)+"?labelSelector=app.kubernetes.io/instance%3Dturngate", nil, list))
				if len(list.Items) > 0 {
					return false
				}
			}
		}
		return len(r.pods(t)) == 0
	})
}
