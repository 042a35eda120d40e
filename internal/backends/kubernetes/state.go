package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/turngate/turngate/internal/box"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
)

// maxSays bounds the words of a cluster in an error.
const maxSays = 1 << 10

// lookEvery is the time between two looks at a pod that changes, waitEvery at one that
// waits for the cluster.
const (
	lookEvery = 500 * time.Millisecond
	waitEvery = 2 * time.Second
)

// silentTime is the time for which the API server may fail while a pod begins.
const silentTime = time.Minute

// state is the state of a pod, as far as it matters to its sandbox.
type state struct {
	helper bool   // its container runs
	waits  string // reason for which the pod does not begin; empty: none
	failed error  // it will not begin
}

// stateOf reads the state of a pod that begins.
func stateOf(p *corev1.Pod) state {
	says := func(reason, message string) string {
		if message == "" {
			return plain.Line(reason, maxSays)
		}
		return plain.Line(reason+": "+message, maxSays)
	}
	if p.DeletionTimestamp != nil {
		return state{failed: errors.New("somebody removed it")}
	}
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		why := p.Status.Reason + " " + p.Status.Message
		for _, c := range p.Status.ContainerStatuses {
			if end := c.State.Terminated; end != nil {
				why += fmt.Sprintf(" the container %s ended with status %d (%s) %s", c.Name, end.ExitCode, end.Reason, end.Message)
			}
		}
		return state{failed: fmt.Errorf("it ended: %s", says(string(p.Status.Phase), strings.TrimSpace(why)))}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return state{waits: says(c.Reason, c.Message)}
		}
	}
	s := state{}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		if c.Name == helperContainer && c.State.Running != nil {
			s.helper = true
		}
		w := c.State.Waiting
		if w == nil {
			continue
		}
		switch w.Reason {
		case "ContainerCreating", "PodInitializing", "":
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable", "ImageInspectError":
			s.waits = says(w.Reason, w.Message)
			code := sandboxes.PullCode(w.Message)
			if code != "" || w.Reason == "InvalidImageName" || w.Reason == "ErrImageNeverPull" {
				s.failed = &sandboxes.ImageError{Image: c.Image, Code: code, Reason: "a node of the cluster cannot pull it: " + s.waits}
			}
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff":
			s.failed = fmt.Errorf("its container %s does not start: %s", c.Name, says(w.Reason, w.Message))
		default:
			s.waits = says(w.Reason, w.Message)
		}
	}
	return s
}

// place makes the pod. It waits while a quota of the namespace has no room for it.
func (m *pod) place(ctx context.Context, p *corev1.Pod, log func(string)) error {
	for said := false; ; {
		err := m.cluster.create(ctx, p, false)
		full := hasNoRoom(err)
		if !full && !apierrors.IsConflict(err) { // another request has changed the quota
			return err
		}
		if full && !said {
			log(m.Called + " waits: " + err.Error())
			said = true
		}
		if ended := pause(ctx, waitEvery); ended != nil {
			return fmt.Errorf("%w: %s waits: %s", ended, m.Called, err.Error())
		}
	}
}

// await looks at the pod until ok returns true. log gets each reason for which it waits.
// The error is the reason for which the pod does not begin, or the context's cause.
func (m *pod) await(ctx context.Context, log func(string), ok func(state) bool) error {
	last := state{}
	answered := time.Now()
	for {
		p, err := m.cluster.pod(ctx, m.name)
		switch {
		case ctx.Err() != nil:
		case isGone(err):
			return fmt.Errorf("%s: somebody removed it", m.Called)
		case IsDenied(err), err != nil && time.Since(answered) > silentTime:
			return err
		case err != nil:
		default:
			answered = time.Now()
			now := stateOf(p)
			if now.failed != nil {
				var image *sandboxes.ImageError
				if errors.As(now.failed, &image) {
					return now.failed
				}
				return fmt.Errorf("%s: %w", m.Called, now.failed)
			}
			if ok(now) {
				return nil
			}
			if now.waits != "" && now.waits != last.waits {
				log(m.Called + " waits: " + now.waits)
			}
			last = now
		}
		every := lookEvery
		if last.waits != "" {
			every = waitEvery
		}
		if err := pause(ctx, every); err != nil {
			if last.waits != "" {
				return fmt.Errorf("%w: %s waits: %s", err, m.Called, last.waits)
			}
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lossTime bounds the search for the reason of a loss: a kubelet reports the end of a
// container some seconds after it.
const lossTime = 15 * time.Second

// whyLost returns the reason for the end of the sandbox in the pod: an error that wraps
// sandboxes.ErrLost.
func (m *pod) whyLost(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, lossTime)
	defer cancel()
	for {
		p, err := m.cluster.pod(limited, m.name)
		if isGone(err) {
			return fmt.Errorf("%w: somebody removed %s", sandboxes.ErrLost, m.Called)
		}
		if err == nil {
			if why := ended(p); why != nil {
				return why
			}
		}
		if pause(limited, lookEvery) != nil {
			if err != nil {
				return fmt.Errorf("%w: %s", sandboxes.ErrLost, err.Error())
			}
			return sandboxes.ErrLost
		}
	}
}

// ended returns the reason for the end of the sandbox of a pod; nil if it has not ended.
func ended(p *corev1.Pod) error {
	if p.Status.Reason != "" { // such as Evicted or DeadlineExceeded
		return fmt.Errorf("%w: %s", sandboxes.ErrLost, plain.Line(p.Status.Reason+": "+p.Status.Message, maxSays))
	}
	for _, c := range p.Status.ContainerStatuses {
		end := c.State.Terminated
		switch {
		case c.Name != boxContainer || end == nil:
		case end.Reason == "OOMKilled":
			return sandboxes.ErrMemory
		case box.Crashed(int(end.ExitCode)):
			return sandboxes.ErrKilled
		default:
			return fmt.Errorf("%w: its container ended with status %d (%s)", sandboxes.ErrLost, end.ExitCode, plain.Line(end.Reason, 100))
		}
	}
	if p.DeletionTimestamp != nil {
		return fmt.Errorf("%w: somebody removed its pod", sandboxes.ErrLost)
	}
	return nil
}
