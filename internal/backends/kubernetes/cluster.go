package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/turngate/turngate/internal/masks"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
)

// cluster is one namespace of a cluster. It has a client of each group of the API that
// the backend uses, and no others: a whole clientset would add 15 MB to the binary.
type cluster struct {
	config                 *rest.Config
	namespace              string
	core, networks, rights rest.Interface
}

// requestTime bounds a request, except a stream.
const requestTime = 30 * time.Second

// open reads the settings of the cluster. It does not contact it.
func open(s sandboxes.Kubernetes) (*cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.Config
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: s.Context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the settings of the cluster: %w; name a file with --kubernetes-config, or set KUBECONFIG", err)
	}
	config.QPS, config.Burst = 50, 100
	config.UserAgent = "turngate"
	config.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("set up the client of Kubernetes: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c := &cluster{config: config, namespace: s.Namespace}
	for _, group := range []struct {
		to      *rest.Interface
		path    string
		version schema.GroupVersion
	}{
		{&c.core, "/api", corev1.SchemeGroupVersion}, {&c.networks, "/apis", networkingv1.SchemeGroupVersion}, {&c.rights, "/apis", authorizationv1.SchemeGroupVersion},
	} {
		of := rest.CopyConfig(config)
		of.APIPath, of.GroupVersion = group.path, &group.version
		of.Wrap(func(by http.RoundTripper) http.RoundTripper { return &masks.Transport{Base: by} })
		client, err := rest.RESTClientFor(of)
		if err != nil {
			return nil, fmt.Errorf("set up the client of Kubernetes: %w", err)
		}
		*group.to = client
	}
	return c, nil
}

// refused makes an error of the cluster short and plain.
func refused(what string, err error) error {
	if err == nil {
		return nil
	}
	return &clusterError{what, err}
}

// clusterError is an error of the API server, or of the way to it.
type clusterError struct {
	what string
	err  error
}

func (e *clusterError) Error() string { return e.what + ": " + plain.Line(e.err.Error(), maxSays) }
func (e *clusterError) Unwrap() error { return e.err }

func isGone(err error) bool { return apierrors.IsNotFound(err) }

// rightError is a right that a user lacks, as a review of its rights tells.
type rightError struct{ verb, resource, namespace string }

func (e *rightError) Error() string {
	return fmt.Sprintf("this user may not %s %s in the namespace %s", e.verb, e.resource, e.namespace)
}

// IsDenied reports whether the user of the cluster lacks a right, so that the same may work
// once it has been given the right. The API server forbids other things as well: a pod that
// has no room in a quota, or a setting that the cluster refuses.
func IsDenied(err error) bool {
	var missing *rightError
	return errors.As(err, &missing) || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) && cannot.MatchString(err.Error())
}

// cannot is in the errors of the API server for a right that a user lacks.
var cannot = regexp.MustCompile(`\bcannot [a-z]+ resource "`)

// hasNoRoom reports whether a quota of the namespace is used up.
func hasNoRoom(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota")
}

// refusesPod reports whether the cluster refuses the content of a pod's request. This is
// neither a lack of rights nor the end of the namespace.
func refusesPod(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) && !IsDenied(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// do runs a request with its bound of time.
func do(ctx context.Context, what string, r *rest.Request, into runtime.Object) error {
	limited, cancel := context.WithTimeoutCause(ctx, requestTime, fmt.Errorf("%s: the API server does not answer within %s", what, requestTime))
	defer cancel()
	err := r.Do(limited).Into(into)
	if err != nil && limited.Err() != nil {
		return context.Cause(limited)
	}
	return refused(what, err)
}

// create makes a pod. A dry run checks it and makes none. The API server may make a pod
// although its request was cancelled, so this call waits for the answer: a removal that
// follows finds the pod.
func (c *cluster) create(ctx context.Context, p *corev1.Pod, dry bool) error {
	r := c.core.Post().Namespace(c.namespace).Resource("pods").Body(p)
	if dry {
		r = r.Param("dryRun", metav1.DryRunAll)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := do(context.WithoutCancel(ctx), "make a pod", r, &corev1.Pod{})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// pod reads a pod.
func (c *cluster) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	return p, do(ctx, "read the pod "+name, c.core.Get().Namespace(c.namespace).Resource("pods").Name(name), p)
}

// remove removes a pod. It reports whether there was one.
func (c *cluster) remove(ctx context.Context, name string) (bool, error) {
	err := do(ctx, "remove the pod "+name, c.core.Delete().Namespace(c.namespace).Resource("pods").Name(name), &metav1.Status{})
	if isGone(err) {
		return false, nil
	}
	return err == nil, err
}

// listPage is the number of pods in an answer, mostPods the most that are read.
const (
	listPage = 500
	mostPods = 100_000
)

// list returns the pods with a label.
func (c *cluster) list(ctx context.Context, label, value string) (out []corev1.Pod, err error) {
	for next := ""; ; {
		r := c.core.Get().Namespace(c.namespace).Resource("pods").Param("labelSelector", label+"="+value).Param("limit", fmt.Sprint(listPage))
		if next != "" {
			r = r.Param("continue", next)
		}
		page := &corev1.PodList{}
		if err := do(ctx, "list pods", r, page); err != nil {
			return nil, err
		}
		out = append(out, page.Items...)
		if next = page.Continue; next == "" {
			return out, nil
		}
		if len(out) > mostPods {
			return nil, fmt.Errorf("list pods: the namespace %s has more than %d of one owner", c.namespace, mostPods)
		}
	}
}

// policyName is the name of the NetworkPolicy of all sandboxes in a namespace.
const policyName = "turngate-none"

// closeNetwork makes sure that the namespace has the NetworkPolicy of sandboxes, and no
// other one that opens the network of pods with these labels: policies add up.
func (c *cluster) closeNetwork(ctx context.Context, pods labels.Set) error {
	want := networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policyName, Labels: map[string]string{labelManager: manager}},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{labelNetwork: networkNone}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		},
	}
	list := &networkingv1.NetworkPolicyList{}
	if err := do(ctx, "list network policies", c.networks.Get().Namespace(c.namespace).Resource("networkpolicies").Param("limit", fmt.Sprint(listPage)), list); err != nil {
		return err
	}
	if list.Continue != "" {
		return fmt.Errorf("the namespace %s has more than %d network policies: name another one", c.namespace, listPage)
	}
	there := false
	for i := range list.Items {
		p := &list.Items[i]
		if p.Name == policyName {
			if !reflect.DeepEqual(p.Spec, want.Spec) {
				return fmt.Errorf("the network policy %s of the namespace %s does not close the network of all pods with the label %s=%s: remove it, and the next worker makes it anew", policyName, c.namespace, labelNetwork, networkNone)
			}
			there = true
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil {
			return fmt.Errorf("read the network policy %s: %w", p.Name, err)
		}
		if len(p.Spec.Ingress)+len(p.Spec.Egress) > 0 && selector.Matches(pods) {
			return fmt.Errorf("the network policy %s of the namespace %s opens the network of sandboxes: let it select no pods with the label %s=%s, or name another namespace", p.Name, c.namespace, labelNetwork, networkNone)
		}
	}
	if there {
		return nil
	}
	err := do(ctx, "make the network policy "+policyName, c.networks.Post().Namespace(c.namespace).Resource("networkpolicies").Body(&want), &networkingv1.NetworkPolicy{})
	if apierrors.IsAlreadyExists(err) { // another worker has made it
		return nil
	}
	return err
}

// mayExec returns an error unless this user may run commands in pods.
func (c *cluster) mayExec(ctx context.Context) error {
	for _, verb := range []string{"get", "create"} { // by the version of the cluster
		ask := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: c.namespace, Verb: verb, Resource: "pods", Subresource: "exec"},
		}}
		if err := do(ctx, "ask for the rights of this user", c.rights.Post().Resource("selfsubjectaccessreviews").Body(ask), ask); err != nil {
			return err
		}
		if !ask.Status.Allowed {
			return &rightError{verb, "pods/exec", c.namespace}
		}
	}
	return nil
}

// execURL is the URL of a shell script in a container of a pod.
func (c *cluster) execURL(pod, container, script string) *url.URL {
	r := c.core.Verb(http.MethodGet).Namespace(c.namespace).Resource("pods").Name(pod).SubResource("exec").
		Param("container", container).Param("stdin", "true").Param("stdout", "true").Param("stderr", "true")
	for _, arg := range []string{"/bin/sh", "-c", script} {
		r = r.Param("command", arg)
	}
	return r.URL()
}

var errClosed = errors.New("it was closed")
