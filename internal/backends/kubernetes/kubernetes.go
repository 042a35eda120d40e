// Package kubernetes makes sandboxes as pods of a cluster, one for each. The container
// sandbox has the image of the task, and the box as its first process. The container
// turngate beside it gets the files from the worker and carries the bytes of the box:
// far.Serve, over a command that the worker starts through the API server.
package kubernetes

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/box"
	farline "github.com/turngate/turngate/internal/line"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// Backend makes sandboxes in one namespace of a cluster.
type Backend struct {
	settings sandboxes.Kubernetes
	helper   string
	program  func() (digest string, err error) // of the helper
	cluster  func() (*cluster, error)
	trees    far.Trees
	timing   farline.Timing
}

// Kind returns this backend's entry in the list of backends.
func Kind() sandboxes.Kind {
	return sandboxes.Kind{
		Name: "kubernetes", Images: true, Asked: func(h sandboxes.Host) bool { return h.Kubernetes.Namespace != "" },
		Works: "the cluster takes pods, and commands may run in them", Remedy: "do as the line above says, or leave out --kubernetes",
		New: func(h sandboxes.Host) (sandboxes.Backend, error) {
			if err := CheckSettings(h.Kubernetes); err != nil {
				return nil, err
			}
			return &Backend{
				settings: h.Kubernetes, helper: h.Helper, timing: farline.DefaultTiming(),
				program: sync.OnceValues(func() (string, error) { return far.Digest(h.Helper) }),
				cluster: sync.OnceValues(func() (*cluster, error) { return open(h.Kubernetes) }),
			}, nil
		},
	}
}

// CheckSettings returns an error that names the first setting that is not valid.
func CheckSettings(s sandboxes.Kubernetes) error {
	name := regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	label := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_./-]{0,315}[A-Za-z0-9])?$`)
	for what, text := range map[string]string{"namespace": s.Namespace, "runtime class": s.RuntimeClass} {
		if text != "" && !name.MatchString(text) {
			return fmt.Errorf("the %s %q is not valid: want lower-case letters and digits, with - and . between them", what, schema.Clip(text, 100))
		}
	}
	for _, secret := range s.PullSecrets {
		if !name.MatchString(secret) {
			return fmt.Errorf("the pull secret %q is not valid: want the name of a secret in the namespace", schema.Clip(secret, 100))
		}
	}
	for key, value := range s.NodeSelector {
		if !label.MatchString(key) || value != "" && !label.MatchString(value) {
			return fmt.Errorf("the node selector %q is not valid: want KEY=VALUE, such as pool=agents", schema.Clip(key+"="+value, 100))
		}
	}
	for _, t := range s.Tolerations {
		if err := checkToleration(t); err != nil {
			return err
		}
	}
	if s.GPUs < 0 || s.GPUs > schema.MaxGPUs {
		return fmt.Errorf("%d GPUs are not valid: want 0 to %d", s.GPUs, schema.MaxGPUs)
	}
	return nil
}

// Name implements sandboxes.Backend.
func (b *Backend) Name() string { return Kind().Name }

// reach returns the cluster.
func (b *Backend) reach() (*cluster, error) {
	if b.settings.Namespace == "" {
		return nil, fmt.Errorf("%w: name a namespace of a cluster with --kubernetes NAMESPACE", sandboxes.ErrNotAsked)
	}
	return b.cluster()
}

// Check lets the API server check a pod without making it. Whether nodes can run pods, and
// whether the network policy works, is known with the first sandbox only.
func (b *Backend) Check(ctx context.Context) error {
	err := b.check(ctx)
	if IsDenied(err) {
		return fmt.Errorf("%w: give this user the role of docs/sandboxes.md", err)
	}
	return err
}

func (b *Backend) check(ctx context.Context) error {
	c, err := b.reach()
	if err != nil {
		return err
	}
	if err := c.closeNetwork(ctx, labelsOf("check")); err != nil {
		return err
	}
	if err := c.mayExec(ctx); err != nil {
		return err
	}
	if _, err := c.list(ctx, labelOwner, ownerLabel("check")); err != nil {
		return err
	}
	p, err := b.manifest(podName(), &sandboxes.Spec{Owner: "check", Rollout: "check-1", Attempt: 1, Image: cmp.Or(b.settings.HelperImage, "check")})
	if err != nil {
		return err
	}
	if err := c.create(ctx, p, true); !hasNoRoom(err) { // a sandbox waits for room
		return err
	}
	return nil
}

// podName returns a new name of a pod.
func podName() string { return "turngate-" + strings.ToLower(rand.Text()) }

// refuse returns an *UnsupportedError if s asks for something that a pod here lacks.
func (b *Backend) refuse(s sandboxes.Spec) error {
	no := func(field, value, reason string) error {
		return &sandboxes.UnsupportedError{Field: "sandbox." + field, Value: value, Reason: reason}
	}
	switch {
	case s.Network != "" && s.Network != schema.NetworkNone:
		return no("network", s.Network, "a pod has no network; use the docker sandbox, or ask for none (--network none)")
	case s.Build != nil:
		return no("build", "environment/Dockerfile", "the kubernetes sandbox builds no images: build the task's image, push it to a registry and name it (docker_image)")
	case s.Image == "":
		return no("image", `""`, "the kubernetes sandbox needs an image (--image, or docker_image of the task)")
	case len(s.Services) > 0:
		return no("services", s.Services[0].Name, "a pod has no side-cars; use the docker sandbox")
	case len(s.Folders) > 0:
		return no("folders", s.Folders[0].Name, "a pod has no folders; use the docker sandbox")
	case len(s.Files) > 0 || !reflect.ValueOf(s.Container).IsZero():
		return no("container", "its settings", "a pod has none of these; use the docker sandbox")
	case s.GPUs > 0 && b.settings.GPUs == 0:
		return sandboxes.GPUsUnsupported(s.GPUs)
	case s.GPUs > b.settings.GPUs:
		return no("gpus", fmt.Sprint(s.GPUs), fmt.Sprintf("this worker gives a sandbox at most %d", b.settings.GPUs))
	}
	return nil
}

// limit changes the limits to values that a pod can have.
func limit(s *sandboxes.Spec) error {
	if err := s.Raise(); err != nil {
		return err
	}
	if s.Pids > 0 {
		if err := s.Weaken(schema.LimitPids, s.Pids, "the limit of processes of a pod is a setting of the kubelet (podPidsLimit)"); err != nil {
			return err
		}
	}
	if s.DiskBytes > 0 {
		if err := s.Weaken(schema.LimitDisk, s.DiskBytes, "written bytes are watched"); err != nil {
			return err
		}
	}
	return nil
}

// Bounds of the time in which a pod starts, once it has a node and its images.
const (
	defaultReady = 5 * time.Minute
	mostReady    = 30 * time.Minute
)

// mostWait bounds the wait for a node and for images; a stage of a rollout has a bound of
// its own.
const mostWait = 2 * time.Hour

// Create implements sandboxes.Backend. It waits for a node with room, and for images.
func (b *Backend) Create(ctx context.Context, s sandboxes.Spec) (_ sandboxes.Sandbox, err error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := b.refuse(s); err != nil {
		return nil, err
	}
	if err := limit(&s); err != nil {
		return nil, err
	}
	digest, err := b.program()
	if err != nil {
		return nil, err
	}
	s.Log = oneAtATime(s.Log)
	c, err := b.reach()
	if err != nil {
		return nil, err
	}
	if err := c.closeNetwork(ctx, labelsOf(s.Owner)); err != nil {
		return nil, err
	}
	s.Ready = min(cmp.Or(s.Ready, defaultReady), mostReady)
	name := podName()
	p, err := b.manifest(name, &s)
	if err != nil {
		return nil, err
	}
	s.DiskBytes = cmp.Or(s.DiskBytes, sandboxes.DefaultDiskBytes) // of the watch
	sb := &sandbox{pod: &pod{Host: far.NewHost(b.Name(), "the pod "+name), cluster: c, name: name}}
	defer func() {
		if err != nil {
			err = errors.Join(err, sb.Close(context.WithoutCancel(ctx)))
		}
	}()
	waiting, cancel := context.WithTimeoutCause(ctx, mostWait, fmt.Errorf("%s has not begun within %s", sb.pod.Called, mostWait))
	defer cancel()
	if err := sb.pod.place(waiting, p, s.Log); err != nil {
		if refusesPod(err) {
			return nil, &sandboxes.UnsupportedError{Field: "sandbox", Value: "a setting", Reason: "the cluster refuses it: " + err.Error()}
		}
		return nil, err
	}
	if err := sb.pod.await(waiting, s.Log, func(now state) bool { return now.helper }); err != nil {
		return nil, err
	}
	l, err := sb.pod.dial(ctx, b.helper, digest, s.Log)
	if err != nil {
		return nil, err
	}
	if sb.line, err = l.Last(ctx, b.timing, l, sb.pod.attach); err != nil {
		l.End(ctx)
		return nil, err
	}
	if b.settings.HelperImage != "" {
		s.Ready = mostWait // a node pulls the image of the box in this time
	}
	if err := sb.enter(waiting, &b.trees, s); err != nil {
		return nil, err
	}
	return sb, nil
}

// enter connects to the box, unless its container does not start.
func (sb *sandbox) enter(ctx context.Context, trees *far.Trees, s sandboxes.Spec) (err error) {
	starting, stop := context.WithCancelCause(ctx)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		stop(sb.pod.await(starting, s.Log, func(state) bool { return false }))
	}()
	sb.Client, err = sb.line.Beside(starting, trees, s, sb.lost) //nolint:contextcheck // lost is asked later
	stop(nil)
	<-looked
	return err
}

// oneAtATime makes calls of log wait for each other.
func oneAtATime(log func(string)) func(string) {
	if log == nil {
		return func(string) {}
	}
	var mu sync.Mutex
	return func(line string) {
		mu.Lock()
		defer mu.Unlock()
		log(line)
	}
}

// Sweep implements sandboxes.Backend.
func (b *Backend) Sweep(ctx context.Context, owner string, keep func(schema.ID) bool) (int, error) {
	c, err := b.reach()
	if err != nil {
		return 0, err
	}
	list, err := c.list(ctx, labelOwner, ownerLabel(owner))
	if err != nil {
		return 0, err
	}
	n := 0
	var problems []error
	for i := range list {
		p := &list[i]
		if p.DeletionTimestamp != nil || p.Annotations[noteOwner] != owner || keep(schema.ID(p.Annotations[noteRollout])) {
			continue
		}
		there, err := c.remove(ctx, p.Name)
		problems = append(problems, err)
		if there {
			n++
		}
	}
	return n, errors.Join(problems...)
}

// sandbox is a pod with a box.
type sandbox struct {
	*box.Client
	sandboxes.Alone
	pod    *pod
	line   *far.Lasting // nil before it is open
	close  sync.Once
	failed error // of Close
}

// closeTime bounds the removal of a sandbox.
const closeTime = 30 * time.Second

// Close implements sandboxes.Sandbox. If the API server does not remove the pod in time,
// its box ends by itself, and the next process of the worker removes it.
func (sb *sandbox) Close(ctx context.Context) error {
	sb.close.Do(func() {
		if sb.Client != nil {
			sb.Disconnect()
		}
		limited, cancel := context.WithTimeoutCause(ctx, closeTime, fmt.Errorf("the API server has not removed the pod %s within %s", sb.pod.name, closeTime))
		defer cancel()
		_, sb.failed = sb.pod.cluster.remove(limited, sb.pod.name)
		if sb.line != nil {
			sb.line.End(limited)
		}
	})
	return sb.failed
}

// lost returns the reason for the end of the sandbox: an error that wraps sandboxes.ErrLost.
func (sb *sandbox) lost() error {
	err := sb.pod.whyLost(context.Background())
	if err == sandboxes.ErrLost { //nolint:errorlint // the pod has not told more
		return sb.line.Lost()
	}
	return err
}
