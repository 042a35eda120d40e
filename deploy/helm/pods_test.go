package helm_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// pods are the fields of a workload's pods.
type pods struct {
	Metadata struct{ Labels, Annotations map[string]string }
	Spec     struct {
		AutomountServiceAccountToken  *bool
		EnableServiceLinks            *bool
		HostUsers                     *bool
		ServiceAccountName            string
		TerminationGracePeriodSeconds *int
		Containers                    []struct {
			Image           string
			Command, Args   []string
			SecurityContext map[string]any
			Ports           []struct{ Name string }
			VolumeMounts    []struct{ Name, MountPath, SubPath, SubPathExpr string }
			LivenessProbe   *probe
			ReadinessProbe  *probe
		}
		Volumes []struct {
			Name   string
			Secret *struct{ SecretName string }
		}
	}
}

type probe struct {
	HTTPGet struct{ Path, Port, Scheme string }
}

// workloads returns the pods of each workload by its component.
func workloads(t *testing.T, objects map[string]object) map[string]pods {
	t.Helper()
	all := map[string]pods{}
	for _, o := range objects {
		if o.at("spec.template") == nil {
			continue
		}
		var p pods
		data, err := json.Marshal(o.at("spec.template"))
		harness.Must(t, err)
		harness.Must(t, json.Unmarshal(data, &p))
		for key, value := range o.at("spec.selector.matchLabels").(map[string]any) {
			if p.Metadata.Labels[key] != value {
				t.Errorf("%s does not select its pods: %s", o.name(), key)
			}
		}
		all[p.Metadata.Labels["app.kubernetes.io/component"]] = p
	}
	return all
}

// TestFlags lets turngate read the arguments of each container, with the values that the
// test gives for variables.
func TestFlags(t *testing.T) {
	binary := testenv.Binary(t)
	tried := map[string]bool{}
	for name, text := range sets {
		for component, p := range workloads(t, render(t, text)) {
			args := p.Spec.Containers[0].Args
			if key := strings.Join(args, " "); tried[key] {
				continue
			} else {
				tried[key] = true
			}
			if out, err := exec.Command(binary, append(args, "--help")...).CombinedOutput(); err != nil || args[0] != component {
				t.Errorf("%s: turngate %s: %v\n%s", name, strings.Join(args, " "), err, out)
			}
		}
	}
	if out, err := exec.Command(binary, "worker", "--no-such-flag=1", "--help").CombinedOutput(); err == nil {
		t.Errorf("the check overlooks an unknown flag: %s", out)
	}
	worker := workloads(t, render(t, sets["flags"]))["worker"].Spec.Containers[0]
	for _, want := range []string{"--nats=tls://a:4222,tls://b:4333", "--grace=3600s", "--replicas=3", "--max-cpus=2.5", "--trainer-queue=2000000", "--allow-shell=true", "--kubernetes=rollouts", "--kubernetes-toleration=pool", "--kubernetes-toleration=gpu=yes:NoSchedule", "--name=$(WORKER)"} {
		if !slices.Contains(worker.Args, want) {
			t.Errorf("the arguments have no %s: %v", want, worker.Args)
		}
	}
	if want := "registry.example/turngate@sha256:" + strings.Repeat("0", 64); worker.Image != want {
		t.Errorf("the image is %s, want %s", worker.Image, want)
	}
}

// TestPods checks the rights of the pods, their files and their ends.
func TestPods(t *testing.T) {
	grace := regexp.MustCompile(`--grace=([0-9]+)s`)
	for name, text := range sets {
		objects := render(t, text)
		for component, p := range workloads(t, objects) {
			c := p.Spec.Containers[0]
			local := strings.Contains(strings.Join(c.Args, " "), "--sandboxes=local")
			kubernetes := slices.Contains(c.Args, "--kubernetes=rollouts")
			profile := "RuntimeDefault"
			if local {
				profile = "Unconfined"
			}
			if want := map[string]any{"type": profile}; !reflect.DeepEqual(c.SecurityContext["seccompProfile"], want) || c.SecurityContext["allowPrivilegeEscalation"] != false || c.SecurityContext["readOnlyRootFilesystem"] != true || (c.SecurityContext["procMount"] != nil) != local || local != (p.Spec.HostUsers != nil) {
				t.Errorf("%s, %s: the security context is %v", name, component, c.SecurityContext)
			}
			if *p.Spec.AutomountServiceAccountToken != kubernetes || *p.Spec.EnableServiceLinks {
				t.Errorf("%s, %s: a pod has a token of the API server: %v", name, component, *p.Spec.AutomountServiceAccountToken)
			}
			volumes := map[string]bool{}
			for _, v := range p.Spec.Volumes {
				volumes[v.Name] = true
			}
			if strings.Contains(text, "size: 20Gi") && component == "worker" {
				volumes["state"] = true // a claim
			}
			for _, m := range c.VolumeMounts {
				if !volumes[m.Name] {
					t.Errorf("%s, %s: there is no volume %s", name, component, m.Name)
				}
			}
			if component == "worker" {
				seconds := 0
				fmt.Sscan(grace.FindStringSubmatch(strings.Join(c.Args, " "))[1], &seconds)
				if p.Spec.TerminationGracePeriodSeconds == nil || *p.Spec.TerminationGracePeriodSeconds != seconds+60 {
					t.Errorf("%s: a worker has %v s to end after %d s of grace", name, *p.Spec.TerminationGracePeriodSeconds, seconds)
				}
				if m := c.VolumeMounts[0]; m.MountPath != "/credentials/worker.nk" || (m.SubPathExpr == "worker-$(WORKER).nk") == (m.SubPath == "workers.creds") {
					t.Errorf("%s: a worker has more than its own credential: %+v", name, m)
				}
			}
			for path, probe := range map[string]*probe{"/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
				if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port != c.Ports[0].Name {
					t.Errorf("%s, %s: the probe of %s is %+v", name, component, path, probe)
				}
			}
		}
		for _, o := range objects {
			if strings.Contains(fmt.Sprint(o), "valueFrom:map[secretKeyRef") || o["kind"] == "Secret" {
				t.Errorf("%s: %s has a secret", name, o.name())
			}
		}
	}
}
