package kubetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/turngate/turngate/internal/harness"
)

const nodeName = "node1"

// node is the only node of a cluster, with its scheduler, its kubelet and its network
// plugin. The containers of a pod share the network of one that sleeps.
type node struct {
	cluster *Cluster
	gateway string // address of this machine in the network of pods
	api     string // host and port of the API server in pods
	ctx     context.Context
	works   sync.WaitGroup

	mu     sync.Mutex
	known  map[string]*running // by the uid of the pod
	opened bool                // the network plugin takes no notice of policies
}

// running is a pod on the node.
type running struct {
	pod    corev1.Pod
	cancel context.CancelCauseFunc
}

// deleted is the reason for which a pod ends that somebody deletes.
type deleted struct {
	grace int64 // seconds in which its container may end
}

func (deleted) Error() string { return "the pod is deleted" }

// lookEvery is the time between two looks of the node at its pods.
const lookEvery = 200 * time.Millisecond

func startNode(t testing.TB, c *Cluster) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	n := &node{cluster: c, ctx: ctx, known: map[string]*running{}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	harness.Must(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", n.serveExec)
	server := &http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{c.cert}}, ReadHeaderTimeout: time.Minute}
	n.works.Go(func() { _ = server.ServeTLS(listener, "", "") }) // it ends with Close
	out, err := docker(ctx, "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
	harness.Must(t, err)
	n.gateway = strings.TrimSpace(out)
	n.api = n.show(t, strings.TrimPrefix(c.url, "https://"))
	n.works.Go(n.watch)
	t.Cleanup(func() {
		cancel()
		_ = server.Close()
		n.works.Wait()
	})
	_, port, err := net.SplitHostPort(listener.Addr().String())
	harness.Must(t, err)
	number, err := strconv.Atoi(port)
	harness.Must(t, err)
	about := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}
	harness.Must(t, c.Try(ctx, http.MethodPost, "/api/v1/nodes", about, about))
	about.Status = corev1.NodeStatus{
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(number)}},
		Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
		Capacity:        corev1.ResourceList{corev1.ResourcePods: resource.MustParse("100")},
	}
	harness.Must(t, c.Try(ctx, http.MethodPut, "/api/v1/nodes/"+nodeName+"/status", about, nil))
	return n
}

// show makes a server of this machine one that pods reach, and returns its host and port
// there.
func (n *node) show(t testing.TB, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(n.gateway, "0"))
	harness.Must(t, err)
	context.AfterFunc(n.ctx, func() { _ = l.Close() })
	n.works.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n.works.Go(func() { n.carry(conn, address) })
		}
	})
	return l.Addr().String()
}

// carry carries the bytes of a connection to a server and back, until one side closes it
// or the test ends.
func (n *node) carry(conn net.Conn, address string) {
	defer conn.Close()
	to, err := (&net.Dialer{}).DialContext(n.ctx, "tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	stop := context.AfterFunc(n.ctx, func() {
		_ = conn.Close()
		_ = to.Close()
	})
	defer stop()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(conn, to) // a side has closed it
		_ = conn.Close()
	}()
	_, _ = io.Copy(to, conn)
	_ = to.Close()
	<-back
}

// Show makes a server of this machine one that pods with a network reach, and returns its
// host and port there.
func (c *Cluster) Show(t testing.TB, address string) string {
	t.Helper()
	return c.node.show(t, address)
}

// IgnorePolicies makes the network plugin of the node one that enforces no NetworkPolicy,
// or again one that does.
func (c *Cluster) IgnorePolicies(on bool) {
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	c.node.opened = on
}

// Kill kills a container of a pod of Namespace.
func (c *Cluster) Kill(t testing.TB, pod, container string) {
	t.Helper()
	_, err := docker(t.Context(), "kill", "-s", "KILL", containerName(c.find(Namespace, pod), container))
	harness.Must(t, err)
}

// find returns a pod of the node; one without a uid if there is none.
func (c *Cluster) find(namespace, pod string) *corev1.Pod {
	c.node.mu.Lock()
	defer c.node.mu.Unlock()
	for _, r := range c.node.known {
		if r.pod.Namespace == namespace && r.pod.Name == pod {
			return &r.pod
		}
	}
	return &corev1.Pod{}
}

// docker runs a command of Docker's client and returns its output.
func docker(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	out, err := cmd.Output()
	var status *exec.ExitError
	if errors.As(err, &status) {
		err = fmt.Errorf("docker %s: %w: %s", args[0], err, strings.TrimSpace(string(status.Stderr)))
	}
	return string(out), err
}

// watch looks at the pods of the cluster until the test ends.
func (n *node) watch() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		}
		list := &corev1.PodList{}
		if n.cluster.Try(n.ctx, http.MethodGet, "/api/v1/pods", nil, list) != nil {
			continue
		}
		there := map[string]*corev1.Pod{}
		for i := range list.Items {
			p := &list.Items[i]
			there[string(p.UID)] = p
			n.look(p)
		}
		n.mu.Lock()
		for uid, r := range n.known {
			switch p := there[uid]; {
			case p == nil:
				r.cancel(deleted{})
				delete(n.known, uid)
			case p.DeletionTimestamp != nil:
				r.cancel(deleted{*p.DeletionGracePeriodSeconds})
			}
		}
		n.mu.Unlock()
	}
}

// look schedules a new pod, or begins to run it.
func (n *node) look(p *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.known[string(p.UID)] != nil:
	case p.Spec.NodeName == "":
		n.schedule(p)
	default:
		ctx, cancel := context.WithCancelCause(n.ctx)
		r := &running{*p, cancel}
		n.known[string(p.UID)] = r
		n.works.Go(func() { n.run(ctx, &r.pod) })
	}
}

// schedule gives the pod to the node, if that has what the pod selects. It is called with
// mu held.
func (n *node) schedule(p *corev1.Pod) {
	if len(p.Spec.NodeSelector) == 0 {
		_ = n.cluster.Try(n.ctx, http.MethodPost, pathOf(p)+"/binding", &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: nodeName},
		}, nil) // the next look tries again
		return
	}
	if len(p.Status.Conditions) == 0 {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.Now(),
			Message: "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
		}}
		n.report(p)
	}
}

// pathOf is the path of a pod at the API server.
func pathOf(p *corev1.Pod) string { return "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name }

// report writes the status of a pod.
func (n *node) report(p *corev1.Pod) {
	now := &corev1.Pod{}
	if n.cluster.Try(n.ctx, http.MethodGet, pathOf(p), nil, now) != nil || now.UID != p.UID {
		return
	}
	now.Status = p.Status
	_ = n.cluster.Try(n.ctx, http.MethodPut, pathOf(p)+"/status", now, nil) // the pod may be gone
}

// isolated reports whether a policy closes the network of a pod.
func (n *node) isolated(ctx context.Context, p *corev1.Pod) (bool, error) {
	list := &networkingv1.NetworkPolicyList{}
	if err := n.cluster.Try(ctx, http.MethodGet, "/apis/networking.k8s.io/v1/namespaces/"+p.Namespace+"/networkpolicies", nil, list); err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, policy := range list.Items {
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil {
			return false, err
		}
		if selector.Matches(labelsOf(p.Labels)) && len(policy.Spec.PolicyTypes) == 2 && len(policy.Spec.Egress)+len(policy.Spec.Ingress) == 0 {
			return !n.opened, nil
		}
	}
	return false, nil
}

// labelsOf are the labels of a pod, for selectors.
type labelsOf map[string]string

func (l labelsOf) Has(name string) bool              { return l[name] != "" }
func (l labelsOf) Get(name string) string            { return l[name] }
func (l labelsOf) Lookup(name string) (string, bool) { v, ok := l[name]; return v, ok }

// streamTime bounds the set-up of a stream, and one on which nothing moves.
const streamTime = 30 * time.Minute

// serveExec serves the kubelet's exec.
func (n *node) serveExec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	p := n.cluster.find(r.PathValue("namespace"), r.PathValue("pod"))
	if err != nil || p.UID == "" {
		http.Error(w, "no such pod", http.StatusNotFound)
		return
	}
	remotecommand.ServeExec(w, r, execIn{p}, p.Name, string(p.UID), r.PathValue("container"), r.Form["command"], options, streamTime, time.Minute, remotecommand.SupportedStreamingProtocols)
}

// execIn runs commands in the containers of a pod.
type execIn struct{ pod *corev1.Pod }

// ExecInContainer implements remotecommand.Executor.
func (e execIn) ExecInContainer(ctx context.Context, _, _, container string, command []string, in io.Reader, out, says io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"exec", "-i", containerName(e.pod, container)}, command...)...)
	cmd.Stdout, cmd.Stderr = out, says
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { // it ends with the stream
		_, _ = io.Copy(input, in)
		_ = input.Close()
	}()
	err = cmd.Wait()
	var status *exec.ExitError
	if errors.As(err, &status) {
		return utilexec.CodeExitError{Err: err, Code: status.ExitCode()}
	}
	return err
}
