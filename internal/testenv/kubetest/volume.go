package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fill writes the volumes of a pod into folders of dir. As the kubelet does, it waits for
// a Secret or a ConfigMap that does not exist yet.
func (n *node) fill(ctx context.Context, p *corev1.Pod, dir string) error {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		to := filepath.Join(dir, v.Name)
		if v.EmptyDir != nil {
			if err := give(p, to, nil, 0o777); err != nil {
				return err
			}
			continue
		}
		if v.Secret == nil && v.Projected == nil {
			return fmt.Errorf("the volume %s is of a kind that this node lacks", v.Name)
		}
		for {
			files, mode, err := n.content(ctx, p, v)
			if err == nil {
				err = give(p, to, files, mode)
			}
			if err == nil {
				break
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return fmt.Errorf("%w: the volume %s waits: %s", ctx.Err(), v.Name, err.Error())
			}
		}
	}
	return nil
}

// give writes files into a new folder, which the group of the pod's files may read. Without
// files it is a folder that all may write.
func give(p *corev1.Pod, dir string, files map[string][]byte, mode os.FileMode) error {
	group := -1
	if id := p.Spec.SecurityContext.FSGroup; id != nil {
		group = int(*id)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if files == nil {
		return errors.Join(os.Chown(dir, -1, group), os.Chmod(dir, mode))
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
		if err := errors.Join(os.Chown(path, -1, group), os.Chmod(path, mode)); err != nil {
			return err
		}
	}
	return nil
}

// content returns the files of a volume with a Secret, or with the files of an account.
func (n *node) content(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (map[string][]byte, os.FileMode, error) {
	if s := v.Secret; s != nil {
		secret := &corev1.Secret{}
		if err := n.cluster.Try(ctx, http.MethodGet, "/api/v1/namespaces/"+p.Namespace+"/secrets/"+s.SecretName, nil, secret); err != nil {
			return nil, 0, err
		}
		if len(s.Items) == 0 {
			return secret.Data, os.FileMode(*s.DefaultMode), nil
		}
		files, err := pick(secret.Data, s.Items)
		return files, os.FileMode(*s.DefaultMode), err
	}
	files := map[string][]byte{}
	for _, s := range v.Projected.Sources {
		switch {
		case s.ServiceAccountToken != nil:
			token, err := n.token(ctx, p, s.ServiceAccountToken)
			if err != nil {
				return nil, 0, err
			}
			files[s.ServiceAccountToken.Path] = []byte(token)
		case s.ConfigMap != nil:
			m := &corev1.ConfigMap{}
			if err := n.cluster.Try(ctx, http.MethodGet, "/api/v1/namespaces/"+p.Namespace+"/configmaps/"+s.ConfigMap.Name, nil, m); err != nil {
				return nil, 0, err
			}
			for _, item := range s.ConfigMap.Items {
				text, ok := m.Data[item.Key]
				if !ok {
					return nil, 0, fmt.Errorf("the ConfigMap %s has no key %s", m.Name, item.Key)
				}
				files[item.Path] = []byte(text)
			}
		case s.DownwardAPI != nil:
			for _, item := range s.DownwardAPI.Items {
				text, err := fieldOf(p, item.FieldRef)
				if err != nil {
					return nil, 0, err
				}
				files[item.Path] = []byte(text)
			}
		default:
			return nil, 0, fmt.Errorf("the volume %s has a source that this node lacks", v.Name)
		}
	}
	return files, os.FileMode(*v.Projected.DefaultMode), nil
}

// pick returns the keys of a Secret that a volume names, by their paths.
func pick(data map[string][]byte, items []corev1.KeyToPath) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			return nil, fmt.Errorf("the Secret has no key %s", item.Key)
		}
		files[item.Path] = value
	}
	return files, nil
}

// token asks the API server for a token of the pod's account, which ends with the pod.
func (n *node) token(ctx context.Context, p *corev1.Pod, s *corev1.ServiceAccountTokenProjection) (string, error) {
	asked := &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"},
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: s.ExpirationSeconds, BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID},
		},
	}
	if s.Audience != "" {
		asked.Spec.Audiences = []string{s.Audience}
	}
	err := n.cluster.Try(ctx, http.MethodPost, "/api/v1/namespaces/"+p.Namespace+"/serviceaccounts/"+p.Spec.ServiceAccountName+"/token", asked, asked)
	return asked.Status.Token, err
}

// fieldOf returns a field of a pod that its container asks for.
func fieldOf(p *corev1.Pod, field *corev1.ObjectFieldSelector) (string, error) {
	if field == nil {
		return "", errors.New("this node has the fields of a pod alone for variables and files")
	}
	switch field.FieldPath {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	}
	return "", fmt.Errorf("this node lacks the field %s of a pod", field.FieldPath)
}
