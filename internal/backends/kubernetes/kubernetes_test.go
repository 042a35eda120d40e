package kubernetes_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/backends/kubernetes"
	"github.com/turngate/turngate/internal/harness"
	farline "github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/internal/testenv/kubetest"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/sandboxes/sandboxtest"
	"github.com/turngate/turngate/schema"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),                          // HTTP/2 connections of the client, which stay open
		goleak.IgnoreTopFunction("k8s.io/client-go/tools/remotecommand.(*heartbeat).start")) // it ends at its next ping, within 5 s
}

// settings returns the settings of the user of the cluster.
func settings(c *kubetest.Cluster) sandboxes.Kubernetes {
	return sandboxes.Kubernetes{Namespace: kubetest.Namespace, Config: c.Config}
}

func backend(t *testing.T, s sandboxes.Kubernetes) sandboxes.Backend {
	t.Helper()
	b, err := kubernetes.Kind().New(sandboxes.Host{Helper: testenv.Binary(t), Kubernetes: s})
	harness.Must(t, err)
	return b
}

func spec(c *kubetest.Cluster) sandboxes.Spec {
	return sandboxes.Spec{Owner: "w1", Rollout: "alpha-1", Attempt: 1, Image: c.Image, Ready: 2 * time.Minute}
}

func TestContract(t *testing.T) {
	c := kubetest.Start(t)
	sandboxtest.Run(t, sandboxtest.Fixture{
		New: func(t *testing.T) sandboxes.Backend {
			b := backend(t, settings(c))
			harness.Must(t, b.Check(t.Context()))
			return b
		},
		Spec:     sandboxes.Spec{Image: c.Image},
		Features: sandboxtest.Features{Shell: true, Isolation: true, Memory: true, Users: true},
	})
}

// TestPods has the tests of one cluster, which takes seconds to start.
func TestPods(t *testing.T) {
	c := kubetest.Start(t)
	for name, run := range map[string]func(*testing.T, *kubetest.Cluster){
		"what a pod has":                 whatAPodHas,
		"a pod that is removed is lost":  removed,
		"a killed helper is lost":        helperKilled,
		"a broken stream costs nothing":  streamBroken,
		"no node takes the pod":          noNode,
		"an image that nobody has":       noImage,
		"a context that ends":            contextEnds,
		"the missing part has its words": missingPart,
		"settings are refused by name":   refusedByName,
		"a policy that somebody changed": changedPolicy,
		"a policy beside it":             secondPolicy,
		"a quota that is used up":        fullQuota,
		"a network that nothing closes":  openNetwork,
	} {
		t.Run(name, func(t *testing.T) { run(t, c) })
	}
}

// whatAPodHas: packages travel and cannot be changed, the image's folder and variables
// count, and there is no way to the cluster's API.
func whatAPodHas(t *testing.T, c *kubetest.Cluster) {
	dir := t.TempDir()
	harness.Must(t, os.MkdirAll(filepath.Join(dir, "bin"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "bin", "hello"), []byte("#!/bin/sh\necho hello\n"), 0o755))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, 5<<20), 0o644))
	var log []string
	sp := spec(c)
	sp.Mounts = []sandboxes.Mount{{Host: dir, Guest: "/.turngate/agent"}}
	sp.Env = map[string]string{"COLOUR": "blue"}
	sp.Log = func(line string) { log = append(log, line) }
	sb := sandboxtest.Create(t, backend(t, settings(c)), sp)
	script := `/.turngate/agent/bin/hello; wc -c </.turngate/agent/big; touch /.turngate/agent/x 2>/dev/null || echo read-only; pwd; echo $COLOUR; env | grep -c KUBERNETES; ls /.turngate /.turngate/run /var/run/secrets 2>/dev/null`
	want := "hello\n5242880\nread-only\n/workspace\nblue\n0\n/.turngate:\nagent\nrun\nturngate\n\n/.turngate/run:\n"
	if got := sandboxtest.Output(t, sb, script); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(log) != 2 || !strings.HasPrefix(log[0], "turngate travels") {
		t.Errorf("log %q", log)
	}
	pods := c.Pods(t)
	if len(pods) != 1 || pods[0].Annotations["turngate-rollout"] != "alpha-1" || pods[0].Annotations["turngate-run"] != "1" || pods[0].Annotations["turngate-owner"] != "w1" {
		t.Errorf("the pods %+v", pods)
	}
	harness.Must(t, sb.Close(t.Context()))
	nothingLeft(t, c)
}

func nothingLeft(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	harness.Eventually(t, "the end of all pods", time.Minute, func() bool { return len(c.Pods(t)) == 0 })
}

// working starts a sandbox with a command that goes on.
func working(t *testing.T, c *kubetest.Cluster) (sandboxes.Sandbox, sandboxes.Process, string) {
	t.Helper()
	sb := sandboxtest.Create(t, backend(t, settings(c)), spec(c))
	p, err := sb.Start(t.Context(), sandboxtest.Sleeps("kubernetes"))
	harness.Must(t, err)
	pods := c.Pods(t)
	return sb, p, pods[len(pods)-1].Name
}

func lost(t *testing.T, p sandboxes.Process, says string) {
	t.Helper()
	if _, err := p.Wait(); !errors.Is(err, sandboxes.ErrLost) || errors.Is(err, sandboxes.ErrMemory) || errors.Is(err, sandboxes.ErrKilled) || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want a loss with %q", err, says)
	}
}

func removed(t *testing.T, c *kubetest.Cluster) {
	_, p, name := working(t, c)
	c.Delete(t, name)
	lost(t, p, "removed")
	nothingLeft(t, c)
}

func helperKilled(t *testing.T, c *kubetest.Cluster) {
	sb, p, name := working(t, c)
	c.Kill(t, name, "turngate")
	lost(t, p, "")
	harness.Must(t, sb.Close(t.Context()))
	nothingLeft(t, c)
}

// streamBroken kills the API server, and the node's end of a stream.
func streamBroken(t *testing.T, c *kubetest.Cluster) {
	b := backend(t, settings(c))
	b.(*kubernetes.Backend).SetTiming(farline.Timing{Beat: 5 * time.Second, Silence: 10 * time.Minute})
	sb := sandboxtest.Create(t, b, spec(c))
	pods := c.Pods(t)
	killStream := func() {
		streams := sandboxtest.Processes("docker\x00exec\x00-i\x00kubetest-" + string(pods[len(pods)-1].UID) + "-")
		if len(streams) == 0 {
			t.Error("no stream was found")
		}
		for _, pid := range streams {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	sandboxtest.GoesOn(t, sb, killStream, func() { c.Restart(t) }, killStream)
	harness.Must(t, sb.Close(t.Context()))
	nothingLeft(t, c)
}

// noNode: the reason of the scheduler is in the log and in the error.
func noNode(t *testing.T, c *kubetest.Cluster) {
	s := settings(c)
	s.NodeSelector = map[string]string{"pool": "other"}
	waits := make(chan string, 10)
	sp := spec(c)
	sp.Log = func(line string) { waits <- line }
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	b := backend(t, s)
	go func() {
		_, err := b.Create(ctx, sp)
		ended <- err
	}()
	if line := <-waits; !strings.Contains(line, "0/1 nodes are available") {
		t.Errorf("log %q", line)
	}
	why := errors.New("the stage is over")
	cancel(why)
	if err := <-ended; !errors.Is(err, why) || !strings.Contains(err.Error(), "Unschedulable: 0/1 nodes are available") {
		t.Errorf("got %v", err)
	}
	nothingLeft(t, c)
}

// noImage: an image with a wrong name. The kubelet reports it as it reports a registry's
// answer.
func noImage(t *testing.T, c *kubetest.Cluster) {
	sp := spec(c)
	sp.Image = "Not/A/Name"
	_, err := backend(t, settings(c)).Create(t.Context(), sp)
	var image *sandboxes.ImageError
	if !errors.As(err, &image) || image.Image != sp.Image || !strings.Contains(image.Reason, "InvalidImageName") {
		t.Errorf("got %v", err)
	}
	nothingLeft(t, c)
	s := settings(c)
	s.HelperImage, sp.Image = c.Image, "Not/A/Name" // the node looks for it when the container beside runs
	if _, err := backend(t, s).Create(t.Context(), sp); !errors.As(err, &image) || image.Image != sp.Image {
		t.Errorf("got %v", err)
	}
	nothingLeft(t, c)
}

// fullQuota: a sandbox waits for room in a quota of the namespace, which is no fault of its
// rollout.
func fullQuota(t *testing.T, c *kubetest.Cluster) {
	const quotas = "/api/v1/namespaces/" + kubetest.Namespace + "/resourcequotas"
	quota := map[string]any{
		"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": "pods"},
		"spec": map[string]any{"hard": map[string]any{"pods": "0"}}, "status": map[string]any{"hard": map[string]any{"pods": "0"}, "used": map[string]any{"pods": "0"}},
	}
	c.Ask(t, http.MethodPost, quotas, quota)
	c.Ask(t, http.MethodPut, quotas+"/pods/status", quota)
	b := backend(t, settings(c))
	harness.Must(t, b.Check(t.Context()))
	waits := make(chan string, 10)
	sp := spec(c)
	sp.Log = func(line string) { waits <- line }
	type made struct {
		sandboxes.Sandbox
		error
	}
	created := make(chan made, 1)
	go func() {
		sb, err := b.Create(t.Context(), sp)
		created <- made{sb, err}
	}()
	select {
	case line := <-waits:
		if !strings.Contains(line, "exceeded quota") {
			t.Errorf("log %q", line)
		}
	case m := <-created:
		t.Fatalf("it did not wait: %v", m.error)
	}
	c.Ask(t, http.MethodDelete, quotas+"/pods", nil)
	m := <-created
	harness.Must(t, m.error)
	harness.Must(t, m.Close(t.Context()))
	nothingLeft(t, c)
}

func contextEnds(t *testing.T, c *kubetest.Cluster) {
	ctx, cancel := context.WithCancelCause(t.Context())
	sp := spec(c)
	why := errors.New("the rollout was cancelled")
	sp.Log = func(string) { cancel(why) } // the program travels
	if _, err := backend(t, settings(c)).Create(ctx, sp); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	nothingLeft(t, c)
}

func missingPart(t *testing.T, c *kubetest.Cluster) {
	for name, tt := range map[string]struct {
		change func(*sandboxes.Kubernetes)
		says   string
	}{
		"namespace":       {func(k *sandboxes.Kubernetes) { k.Namespace = "" }, "--kubernetes NAMESPACE"},
		"other namespace": {func(k *sandboxes.Kubernetes) { k.Namespace = "kube-system" }, "forbidden"},
		"config":          {func(k *sandboxes.Kubernetes) { k.Config = "/nowhere" }, "/nowhere"},
		"context":         {func(k *sandboxes.Kubernetes) { k.Context = "other" }, "other"},
		"runtime class":   {func(k *sandboxes.Kubernetes) { k.RuntimeClass = "gvisor" }, "gvisor"},
	} {
		s := settings(c)
		tt.change(&s)
		err := backend(t, s).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "worker-token") {
			t.Errorf("%s: %v", name, err)
		}
		if asked := !errors.Is(err, sandboxes.ErrNotAsked); asked != (name != "namespace") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func refusedByName(t *testing.T, c *kubetest.Cluster) {
	b := backend(t, settings(c))
	for field, change := range map[string]func(*sandboxes.Spec){
		"sandbox.network":   func(s *sandboxes.Spec) { s.Network = "open" },
		"sandbox.image":     func(s *sandboxes.Spec) { s.Image = "" },
		"sandbox.build":     func(s *sandboxes.Spec) { s.Build = &sandboxes.Build{} },
		"sandbox.services":  func(s *sandboxes.Spec) { s.Services = []sandboxes.Service{{Name: "db"}} },
		"sandbox.container": func(s *sandboxes.Spec) { s.Container.Hostname = "db" },
		"sandbox.gpus":      func(s *sandboxes.Spec) { s.GPUs = 1 },
		"sandbox.pids":      func(s *sandboxes.Spec) { s.Pids, s.Strict = 100, []string{schema.LimitPids} },
	} {
		sp := spec(c)
		change(&sp)
		_, err := b.Create(t.Context(), sp)
		var no *sandboxes.UnsupportedError
		if !errors.As(err, &no) || no.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func changedPolicy(t *testing.T, c *kubetest.Cluster) {
	const policies = "/apis/networking.k8s.io/v1/namespaces/" + kubetest.Namespace + "/networkpolicies"
	b := backend(t, settings(c))
	harness.Must(t, b.Check(t.Context()))
	c.Ask(t, http.MethodDelete, policies+"/turngate-none", nil)
	c.Ask(t, http.MethodPost, policies, map[string]any{
		"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": map[string]any{"name": "turngate-none"},
		"spec": map[string]any{"podSelector": map[string]any{}, "policyTypes": []string{"Ingress"}},
	})
	if _, err := b.Create(t.Context(), spec(c)); err == nil || !strings.Contains(err.Error(), "does not close the network") {
		t.Errorf("got %v", err)
	}
	c.Ask(t, http.MethodDelete, policies+"/turngate-none", nil)
	harness.Must(t, b.Check(t.Context()))
}

// secondPolicy: policies add up, so another one may open a port that the first closes.
func secondPolicy(t *testing.T, c *kubetest.Cluster) {
	const policies = "/apis/networking.k8s.io/v1/namespaces/" + kubetest.Namespace + "/networkpolicies"
	b := backend(t, settings(c))
	for name, tt := range map[string]struct {
		spec  map[string]any
		opens bool
	}{
		"dns-for-all":    {map[string]any{"podSelector": map[string]any{}, "policyTypes": []string{"Egress"}, "egress": []any{map[string]any{"ports": []any{map[string]any{"port": 53, "protocol": "UDP"}}}}}, true},
		"none-for-all":   {map[string]any{"podSelector": map[string]any{}, "policyTypes": []string{"Egress"}}, false},
		"for-other-pods": {map[string]any{"podSelector": map[string]any{"matchLabels": map[string]any{"app": "web"}}, "ingress": []any{map[string]any{}}}, false},
	} {
		c.Ask(t, http.MethodPost, policies, map[string]any{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": map[string]any{"name": name}, "spec": tt.spec})
		err := b.Check(t.Context())
		if opens := err != nil && strings.Contains(err.Error(), name+" of the namespace rollouts opens"); opens != tt.opens || !opens && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.Ask(t, http.MethodDelete, policies+"/"+name, nil)
	}
}

// openNetwork: a sandbox is refused if the cluster takes no notice of its policy.
func openNetwork(t *testing.T, c *kubetest.Cluster) {
	c.IgnorePolicies(true)
	defer c.IgnorePolicies(false)
	_, err := backend(t, settings(c)).Create(t.Context(), spec(c))
	var no *sandboxes.UnsupportedError
	if !errors.As(err, &no) || !strings.Contains(no.Reason, "does not enforce NetworkPolicy") {
		t.Errorf("got %v", err)
	}
	nothingLeft(t, c)
}

func TestSettingsAreChecked(t *testing.T) {
	for says, s := range map[string]sandboxes.Kubernetes{
		"namespace":     {Namespace: "A b"},
		"runtime class": {RuntimeClass: "g/visor"},
		"pull secret":   {PullSecrets: []string{"ok", "no no"}},
		"node selector": {NodeSelector: map[string]string{"pool": "a b"}},
		"toleration":    {Tolerations: []string{"gpu=true:Sometimes"}},
		"GPUs":          {GPUs: -1},
	} {
		if _, err := kubernetes.Kind().New(sandboxes.Host{Kubernetes: s}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	good := sandboxes.Kubernetes{
		Namespace: "rollouts", RuntimeClass: "gvisor", PullSecrets: []string{"registry.login"}, GPUs: 8,
		NodeSelector: map[string]string{"cloud.example.com/pool": "agents", "spot": ""}, Tolerations: []string{"a", "a:NoExecute", "a=b:NoSchedule"},
	}
	if err := kubernetes.CheckSettings(good); err != nil {
		t.Error(err)
	}
}
