package kubetest

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func containerName(p *corev1.Pod, container string) string {
	return "kubetest-" + string(p.UID) + "-" + container
}

// mostLife is the time after which a pod without a deadline of its own ends: longer than
// any test.
const mostLife = 24 * time.Hour

// run runs a pod until it is deleted. Its container then gets SIGTERM, and SIGKILL after
// the grace of the deletion. The containers of a pod that has ended stay for their output.
func (n *node) run(ctx context.Context, p *corev1.Pod) {
	names := []string{containerName(p, "pause")}
	for _, c := range append(p.Spec.InitContainers, p.Spec.Containers...) {
		names = append(names, containerName(p, c.Name))
	}
	dir, err := os.MkdirTemp(n.cluster.dir, "pod")
	if err == nil {
		err = n.runFor(ctx, p, dir)
	}
	if ctx.Err() == nil {
		if err != nil {
			p.Status.Phase, p.Status.Message = corev1.PodFailed, err.Error()
		}
		_, _ = docker(ctx, append([]string{"kill"}, names...)...) // some have ended, or were never made
		n.report(p)
		<-ctx.Done()
	}
	var asked deleted
	if errors.As(context.Cause(ctx), &asked) {
		_, _ = docker(n.ctx, "stop", "-t", fmt.Sprint(asked.grace), containerName(p, p.Spec.Containers[0].Name)) //nolint:contextcheck // the pod's context has ended; the container may not have started
	}
	_, _ = docker(context.WithoutCancel(ctx), append([]string{"rm", "-f"}, names...)...)
	_ = os.RemoveAll(dir)
	zero := int64(0)
	_ = n.cluster.Try(n.ctx, http.MethodDelete, pathOf(p), &metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &p.UID}}, nil) //nolint:contextcheck // the pod's context has ended; the pod may be gone, as the test may
}

// runFor runs a pod within its deadline.
func (n *node) runFor(ctx context.Context, p *corev1.Pod, dir string) error {
	life := mostLife
	if s := p.Spec.ActiveDeadlineSeconds; s != nil {
		life = time.Duration(*s) * time.Second
	}
	limited, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	err := n.runIn(limited, p, dir)
	if limited.Err() != nil {
		p.Status.Reason = "DeadlineExceeded"
		return errors.New("the pod was active on the node longer than its deadline")
	}
	return err
}

// runIn runs the sidecar of a pod, if it has one, and its container once the sidecar has
// started.
func (n *node) runIn(ctx context.Context, p *corev1.Pod, dir string) error {
	if len(p.Spec.InitContainers) > 1 || len(p.Spec.Containers) != 1 {
		return errors.New("this node runs pods of one container and at most one sidecar")
	}
	closed, err := n.isolated(ctx, p)
	if err != nil {
		return err
	}
	network := "bridge"
	if closed {
		network = "none"
	}
	if err := n.fill(ctx, p, dir); err != nil {
		return err
	}
	uncut := context.WithoutCancel(ctx) // the engine could make a container although its client has ended
	pause := containerName(p, "pause")
	if _, err := docker(uncut, "run", "-d", "--name", pause, "--network", network, "--hostname", cmp.Or(p.Spec.Hostname, p.Name), "--entrypoint", "/bin/sleep", n.cluster.Image, "1000000"); err != nil {
		return err
	}
	address, err := docker(ctx, "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", pause)
	if err != nil {
		return err
	}
	main := &p.Spec.Containers[0]
	p.Status.Phase, p.Status.PodIP = corev1.PodPending, strings.TrimSpace(address)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: main.Name, Image: main.Image, State: waiting("PodInitializing", "")}}
	for i := range p.Spec.InitContainers {
		side := &p.Spec.InitContainers[i]
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: side.Name, Image: side.Image}}
		if err := n.begin(ctx, p, side, &p.Status.InitContainerStatuses[0], dir); err != nil {
			return err
		}
		if err := n.started(ctx, p, side); err != nil {
			return err
		}
	}
	code, err := n.attend(ctx, p, main, dir)
	if err != nil {
		return err
	}
	lacked, err := docker(ctx, "inspect", "--format", "{{.State.OOMKilled}}", containerName(p, main.Name))
	if err != nil {
		return err
	}
	end := &corev1.ContainerStateTerminated{ExitCode: int32(code), Reason: "Completed", FinishedAt: metav1.Now()}
	p.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		end.Reason, p.Status.Phase = "Error", corev1.PodFailed
	}
	if strings.TrimSpace(lacked) == "true" {
		end.Reason = "OOMKilled"
	}
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: end}
	setReady(p, false)
	return nil
}

// restartEvery is the time after which a container of a workload that has ended starts again.
const restartEvery = time.Second

// attend runs the container of a pod until it ends, and again if that is the pod's policy.
// It returns the exit status.
func (n *node) attend(ctx context.Context, p *corev1.Pod, c *corev1.Container, dir string) (int, error) {
	for {
		if err := n.begin(ctx, p, c, &p.Status.ContainerStatuses[0], dir); err != nil {
			return 0, err
		}
		code, err := n.watchContainer(ctx, p, c)
		if err != nil || p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
			return code, err
		}
		setReady(p, false)
		n.report(p)
		select {
		case <-time.After(restartEvery):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if _, err := docker(ctx, "rm", containerName(p, c.Name)); err != nil {
			return 0, err
		}
	}
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// setReady writes whether the container of a pod is ready into its status.
func setReady(p *corev1.Pod, ready bool) {
	p.Status.ContainerStatuses[0].Ready = ready
	now := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}
	if ready {
		now.Status = corev1.ConditionTrue
	}
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == now.Type {
			p.Status.Conditions[i] = now
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, now)
}

// begin starts a container. While its image cannot be pulled, it tries again.
func (n *node) begin(ctx context.Context, p *corev1.Pod, c *corev1.Container, status *corev1.ContainerStatus, dir string) error {
	for {
		if _, err := docker(ctx, "image", "inspect", c.Image); err == nil {
			break
		}
		_, err := docker(ctx, "pull", "-q", c.Image)
		if err == nil {
			break
		}
		reason := "ErrImagePull"
		if strings.Contains(err.Error(), "invalid reference format") {
			reason = "InvalidImageName"
		}
		status.State = waiting(reason, err.Error())
		n.report(p)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	args, err := n.arguments(p, c, dir)
	if err != nil {
		return err
	}
	if _, err := docker(context.WithoutCancel(ctx), args...); err != nil { // as for the first container
		return err
	}
	now := metav1.Now()
	status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	status.Ready, status.ContainerID = true, "docker://"+containerName(p, c.Name)
	if c.RestartPolicy == nil {
		p.Status.Phase = corev1.PodRunning
		setReady(p, c.ReadinessProbe == nil)
	}
	n.report(p)
	return nil
}

// arguments are those of Docker's client for a container.
func (n *node) arguments(p *corev1.Pod, c *corev1.Container, dir string) ([]string, error) {
	host, port, err := net.SplitHostPort(n.api)
	if err != nil {
		return nil, err
	}
	args := []string{
		"run", "-d", "--name", containerName(p, c.Name), "--network", "container:" + containerName(p, "pause"), "--pids-limit", "512",
		"-e", "KUBERNETES_SERVICE_HOST=" + host, "-e", "KUBERNETES_SERVICE_PORT=" + port,
	}
	var variables []string // as strings.NewReplacer has them
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil {
			if value, err = fieldOf(p, e.ValueFrom.FieldRef); err != nil {
				return nil, err
			}
		}
		args = append(args, "-e", e.Name+"="+value)
		variables = append(variables, "$("+e.Name+")", value)
	}
	expand := strings.NewReplacer(variables...)
	args = append(args, security(p, c)...)
	if m := c.Resources.Limits.Memory().Value(); m > 0 {
		args = append(args, "--memory", fmt.Sprint(m), "--memory-swap", fmt.Sprint(m))
	}
	if m := c.Resources.Limits.Cpu().MilliValue(); m > 0 {
		args = append(args, "--cpus", fmt.Sprint(float64(m)/1000))
	}
	for _, v := range c.VolumeMounts {
		at := filepath.Join(dir, v.Name, cmp.Or(v.SubPath, expand.Replace(v.SubPathExpr)))
		if _, err := os.Stat(at); err != nil { // as the kubelet does for a missing path
			if err := os.MkdirAll(at, 0o755); err != nil {
				return nil, err
			}
		}
		bind := at + ":" + v.MountPath
		if v.ReadOnly {
			bind += ":ro"
		}
		args = append(args, "-v", bind)
	}
	if c.WorkingDir != "" {
		args = append(args, "-w", c.WorkingDir)
	}
	args = append(args, "--entrypoint", c.Command[0], c.Image)
	for _, a := range append(c.Command[1:], c.Args...) {
		args = append(args, expand.Replace(a))
	}
	return args, nil
}

// security are the arguments of Docker's client for the rights of a container.
func security(p *corev1.Pod, c *corev1.Container) (args []string) {
	of, s := p.Spec.SecurityContext, c.SecurityContext // the API server has made the first one
	if s == nil {
		s = &corev1.SecurityContext{}
	}
	if user, group := cmp.Or(s.RunAsUser, of.RunAsUser), cmp.Or(s.RunAsGroup, of.RunAsGroup); user != nil && group != nil {
		args = append(args, "--user", fmt.Sprintf("%d:%d", *user, *group))
	}
	if of.FSGroup != nil {
		args = append(args, "--group-add", fmt.Sprint(*of.FSGroup))
	}
	if no := s.AllowPrivilegeEscalation; no != nil && !*no {
		args = append(args, "--security-opt", "no-new-privileges")
	}
	if only := s.ReadOnlyRootFilesystem; only != nil && *only {
		args = append(args, "--read-only")
	}
	if s.Capabilities != nil {
		for _, name := range s.Capabilities.Drop {
			args = append(args, "--cap-drop", string(name))
		}
		for _, name := range s.Capabilities.Add {
			args = append(args, "--cap-add", string(name))
		}
	}
	return args
}

// started waits until the startup probe of a container succeeds.
func (n *node) started(ctx context.Context, p *corev1.Pod, c *corev1.Container) error {
	for {
		if _, err := docker(ctx, append([]string{"exec", containerName(p, c.Name)}, c.StartupProbe.Exec.Command...)...); err == nil {
			return nil
		}
		select {
		case <-time.After(time.Duration(c.StartupProbe.PeriodSeconds) * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watchContainer waits for the end of a container and returns its exit status. Its
// readiness probe decides meanwhile whether the pod is ready.
func (n *node) watchContainer(ctx context.Context, p *corev1.Pod, c *corev1.Container) (code int, err error) {
	var out string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out, err = docker(ctx, "wait", containerName(p, c.Name))
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(strings.TrimSpace(out))
		case <-tick.C:
			if c.ReadinessProbe == nil {
				continue
			}
			if ready := answers(ctx, p, c, c.ReadinessProbe.HTTPGet); ready != p.Status.ContainerStatuses[0].Ready {
				setReady(p, ready)
				n.report(p)
			}
		}
	}
}

// answers reports whether a page of a pod answers a probe.
func answers(ctx context.Context, p *corev1.Pod, c *corev1.Container, get *corev1.HTTPGetAction) bool {
	port := get.Port.String()
	for _, named := range c.Ports {
		if named.Name == port {
			port = fmt.Sprint(named.ContainerPort)
		}
	}
	limited, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(limited, http.MethodGet, strings.ToLower(string(cmp.Or(get.Scheme, corev1.URISchemeHTTP)))+"://"+net.JoinHostPort(p.Status.PodIP, port)+get.Path, nil)
	if err != nil {
		return false
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // as kubelets do
	}}
	res, err := client.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode < 400
}

// Output returns the last lines that the container of a pod has written.
func (c *Cluster) Output(t testing.TB, p *corev1.Pod) string {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), "docker", "logs", "--tail", "20", containerName(p, p.Spec.Containers[0].Name)).CombinedOutput()
	if err != nil {
		return err.Error() // it has not begun
	}
	return string(said)
}
