package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends/kubernetes"
	"github.com/turngate/turngate/sandboxes"
)

// kubernetesFlags name the cluster of the backend kubernetes and settings of its pods.
type kubernetesFlags struct {
	kubernetes, kubernetesConfig, kubernetesContext, kubernetesHelperImage, kubernetesRuntimeClass string
	kubernetesNodeSelector, kubernetesPullSecrets                                                  string
	kubernetesToleration                                                                           []string
	kubernetesGPUs                                                                                 int
	kubernetesUserNamespaces                                                                       bool
}

func (f *kubernetesFlags) add(fl *pflag.FlagSet, prefix string) {
	fl.StringVar(&f.kubernetes, "kubernetes", "", prefix+"namespace for the pods of the kubernetes sandbox")
	fl.StringVar(&f.kubernetesConfig, "kubernetes-config", "", prefix+"settings of clusters (default: KUBECONFIG, ~/.kube/config, or the ServiceAccount of this pod)")
	fl.StringVar(&f.kubernetesContext, "kubernetes-context", "", prefix+"context in these settings (default: the current one)")
	fl.StringVar(&f.kubernetesHelperImage, "kubernetes-helper-image", "", prefix+"image of the container beside each kubernetes sandbox: it has a shell, and turngate if that should not travel (default: the sandbox's image)")
	fl.StringVar(&f.kubernetesRuntimeClass, "kubernetes-runtime-class", "", prefix+"RuntimeClass of the pods, such as gvisor")
	fl.StringVar(&f.kubernetesNodeSelector, "kubernetes-node-selector", "", prefix+"labels of the nodes for the pods, comma-separated: KEY=VALUE")
	fl.StringArrayVar(&f.kubernetesToleration, "kubernetes-toleration", nil, prefix+"taint that the pods tolerate: KEY, KEY:EFFECT or KEY=VALUE:EFFECT; may be repeated")
	fl.StringVar(&f.kubernetesPullSecrets, "kubernetes-pull-secrets", "", prefix+"secrets of the namespace for registries, comma-separated")
	fl.IntVar(&f.kubernetesGPUs, "kubernetes-gpus", 0, prefix+"most GPUs (nvidia.com/gpu) that a kubernetes sandbox may ask for")
	fl.BoolVar(&f.kubernetesUserNamespaces, "kubernetes-user-namespaces", false, prefix+"give each pod users of its own (hostUsers: false)")
}

// check returns all errors in these flags.
func (f *kubernetesFlags) check() error {
	s, err := f.settings()
	return errors.Join(err, flagOf("kubernetes", kubernetes.CheckSettings(s)))
}

// settings reads the flags.
func (f *kubernetesFlags) settings() (sandboxes.Kubernetes, error) {
	s := sandboxes.Kubernetes{
		Namespace: f.kubernetes, Config: f.kubernetesConfig, Context: f.kubernetesContext, HelperImage: f.kubernetesHelperImage, RuntimeClass: f.kubernetesRuntimeClass,
		Tolerations: f.kubernetesToleration, PullSecrets: splitList(f.kubernetesPullSecrets), GPUs: f.kubernetesGPUs, UserNamespaces: f.kubernetesUserNamespaces,
	}
	if s.Config != "" {
		path, err := filepath.Abs(s.Config) // a keeper changes its working directory
		if err != nil {
			return s, fmt.Errorf("--kubernetes-config: %w", err)
		}
		s.Config = path
	}
	for _, label := range splitList(f.kubernetesNodeSelector) {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return s, fmt.Errorf("--kubernetes-node-selector: %q is not valid: want KEY=VALUE, such as pool=agents", label)
		}
		if s.NodeSelector == nil {
			s.NodeSelector = map[string]string{}
		}
		s.NodeSelector[key] = value
	}
	return s, nil
}
