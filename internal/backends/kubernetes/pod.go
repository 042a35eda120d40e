package kubernetes

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/sandboxes"
)

// Labels and annotations of pods. A label has the digest of its owner, which may be longer
// than a label.
const (
	labelManager = "app.kubernetes.io/managed-by"
	labelOwner   = "turngate-owner"
	labelNetwork = "turngate-network"
	noteOwner    = "turngate-owner"
	noteRollout  = "turngate-rollout"
	noteRun      = "turngate-run"

	manager     = "turngate"
	networkNone = "none"
)

// Containers of a pod.
const (
	boxContainer    = "sandbox"
	helperContainer = "turngate"
)

// folder is the volume of the helper in its container.
const (
	volume = "turngate"
	folder = "/.turngate"
)

// leftTime is the time after which a helper without a worker lets the container of the box
// start, which ends the pod.
const leftTime = time.Hour

// slack is the time in which a pod may begin and end beside the life of its sandbox.
const slack = time.Hour

// ownerLabel is the value of labelOwner.
func ownerLabel(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:16])
}

// labelsOf are the labels of an owner's pods.
func labelsOf(owner string) map[string]string {
	return map[string]string{labelManager: manager, labelOwner: ownerLabel(owner), labelNetwork: networkNone}
}

// manifest describes the pod of a sandbox. The helper is a sidecar that starts first; the
// container of the box starts when the helper has brought the files. It has them read-only.
func (b *Backend) manifest(name string, s *sandboxes.Spec) (*corev1.Pod, error) {
	no, always := false, corev1.ContainerRestartPolicyAlways
	deadline := int64((cmp.Or(s.Life, 24*time.Hour) + cmp.Or(s.Ready, defaultReady) + slack).Seconds())
	grace, one := int64(1), "1"
	const ready = folder + "/" + far.ReadyFile
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      labelsOf(s.Owner),
			Annotations: map[string]string{noteOwner: s.Owner, noteRollout: string(s.Rollout), noteRun: s.RunID()},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, ActiveDeadlineSeconds: &deadline, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, Hostname: "sandbox",
			// Names are not found at once; the cluster's DNS would take a time-out for each.
			DNSPolicy:    corev1.DNSNone,
			DNSConfig:    &corev1.PodDNSConfig{Nameservers: []string{"127.0.0.1"}, Options: []corev1.PodDNSConfigOption{{Name: "timeout", Value: &one}, {Name: "attempts", Value: &one}}},
			NodeSelector: b.settings.NodeSelector,
			Volumes:      []corev1.Volume{{Name: volume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			InitContainers: []corev1.Container{{
				Name: helperContainer, Image: cmp.Or(b.settings.HelperImage, s.Image), RestartPolicy: &always,
				Command:         []string{"/bin/sh", "-c", fmt.Sprintf("sleep %d; : >%s; while :; do sleep 3600; done", int(leftTime.Seconds()), ready)},
				WorkingDir:      "/",
				SecurityContext: rootWith(nil),
				VolumeMounts:    []corev1.VolumeMount{{Name: volume, MountPath: folder}},
				StartupProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "[ -e " + ready + " ]"}}},
					PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: math.MaxInt32,
				},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("256Mi")},
				},
			}},
			Containers: []corev1.Container{{
				Name: boxContainer, Image: s.Image, Command: []string{sandboxes.HelperPath, far.PodBoxCommand},
				SecurityContext: rootWith([]corev1.Capability{
					"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "AUDIT_WRITE", "SETFCAP",
				}),
				VolumeMounts: []corev1.VolumeMount{mounted("turngate", sandboxes.HelperPath), mounted(far.RunFolder, folder+"/"+far.RunFolder)},
				Resources:    resources(s),
			}},
		},
	}
	for _, m := range s.Mounts {
		path, err := b.trees.Path(m.Host)
		if err != nil {
			return nil, err
		}
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, mounted(path, m.Guest))
	}
	if b.settings.RuntimeClass != "" {
		p.Spec.RuntimeClassName = &b.settings.RuntimeClass
	}
	if b.settings.UserNamespaces {
		p.Spec.HostUsers = &no
	}
	for _, t := range b.settings.Tolerations {
		p.Spec.Tolerations = append(p.Spec.Tolerations, toleration(t))
	}
	for _, secret := range b.settings.PullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	return p, nil
}

// mounted shows a part of the volume in the container of the box.
func mounted(path, at string) corev1.VolumeMount {
	return corev1.VolumeMount{Name: volume, SubPath: path, MountPath: at, ReadOnly: true}
}

// rootWith is the security of a container: root with these capabilities alone.
func rootWith(capabilities []corev1.Capability) *corev1.SecurityContext {
	no, root := false, int64(0)
	return &corev1.SecurityContext{
		RunAsUser: &root, RunAsGroup: &root, AllowPrivilegeEscalation: &no,
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// gpuResource is the resource of a GPU.
const gpuResource = "nvidia.com/gpu"

// resources returns the limits of a sandbox, which are its requests too. The disk is
// requested, and watched by the box: a pod above a limit would be evicted, and the agent
// would not know why.
func resources(s *sandboxes.Spec) corev1.ResourceRequirements {
	limits := corev1.ResourceList{}
	if s.CPUs > 0 {
		limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(math.Ceil(s.CPUs*1000)), resource.DecimalSI)
	}
	if s.MemoryBytes > 0 {
		limits[corev1.ResourceMemory] = *resource.NewQuantity(s.MemoryBytes, resource.BinarySI)
	}
	if s.GPUs > 0 {
		limits[gpuResource] = *resource.NewQuantity(int64(s.GPUs), resource.DecimalSI)
	}
	requests := limits.DeepCopy()
	if s.DiskBytes > 0 {
		requests[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(s.DiskBytes, resource.BinarySI)
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: requests}
}

// toleration reads KEY, KEY:EFFECT or KEY=VALUE:EFFECT, which checkToleration has found
// valid.
func toleration(text string) corev1.Toleration {
	rest, effect, _ := strings.Cut(text, ":")
	key, value, equal := strings.Cut(rest, "=")
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
	if equal {
		t.Operator, t.Value = corev1.TolerationOpEqual, value
	}
	return t
}

func checkToleration(text string) error {
	t := toleration(text)
	switch t.Effect {
	case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		t.Key = ""
	}
	if t.Key == "" {
		return fmt.Errorf("the toleration %q is not valid: want KEY, KEY:EFFECT or KEY=VALUE:EFFECT, such as gpu=true:NoSchedule", text)
	}
	return nil
}
