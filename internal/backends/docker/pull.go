package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	"github.com/docker/docker/client"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// pull fetches an image with the credentials that `docker login` stored on this
// host.
func pull(ctx context.Context, api *client.Client, ref string, say func(string)) error {
	auth, err := authFor(ref)
	if err != nil {
		return &sandboxes.ImageError{Image: ref, Reason: err.Error()}
	}
	p := &pullProgress{ref: ref, say: say, layers: map[string]*layer{}}
	body, err := api.ImagePull(ctx, ref, image.PullOptions{RegistryAuth: auth})
	if err == nil {
		defer body.Close()
		err = readProgress(body, p.add)
	}
	switch {
	case err == nil:
		p.report()
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("%w: pull %s: %w", errEngine, ref, err)
	}
	code, hint := pullFault(err.Error())
	if code == "" && errdefs.IsNotFound(err) {
		code, hint = schema.CodeNoImage, hintMissing
	}
	if hint == "" {
		hint = "see whether the engine's host reaches the registry, or make the image there with `docker load` or `docker build`"
	}
	return &sandboxes.ImageError{Image: ref, Code: code, Reason: fmt.Sprintf("it is not on the engine's host and cannot be pulled: %v; %s", err, hint)}
}

const (
	hintMissing = "check its name and tag; if the image is private, run `docker login` on the worker's host as the worker's user"
	hintAuth    = "run `docker login` for its registry on the worker's host as the worker's user"
	hintRate    = "wait, run `docker login` on the worker's host for a higher limit, use a mirror, or pull it before with `turngate image pull`"
)

// pullFault classifies a registry's reason for refusing an image. An empty code
// means another error.
func pullFault(text string) (code, hint string) {
	code = sandboxes.PullCode(text)
	return code, map[string]string{
		schema.CodeImageRate: hintRate, schema.CodeImageAuth: hintAuth, schema.CodeNoImage: hintMissing,
		schema.CodeImageKind: "take an image for this engine's architecture, or a worker of that one",
	}[code]
}

// loadLogin reads the credentials that `docker login` stored for this user.
func loadLogin() (*configfile.ConfigFile, error) {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return configfile.New(""), nil //nolint:nilerr // a service without a home directory has no login
		}
		dir = filepath.Join(home, ".docker")
	}
	login, err := config.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("read the credentials of registries: %w", err)
	}
	return login, nil
}

// authFor returns the credentials of an image's registry in the engine's
// encoding. It returns "" if there are none.
func authFor(ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", err
	}
	host := reference.Domain(named)
	if host == "docker.io" {
		host = "https://index.docker.io/v1/"
	}
	login, err := loadLogin()
	if err != nil {
		return "", err
	}
	got, err := login.GetAuthConfig(host)
	if err != nil {
		return "", fmt.Errorf("read the credentials of %s: %w", host, err)
	}
	if got.Username == "" && got.IdentityToken == "" && got.RegistryToken == "" {
		return "", nil
	}
	return registry.EncodeAuthConfig(registry.AuthConfig{
		Username: got.Username, Password: got.Password, ServerAddress: got.ServerAddress, IdentityToken: got.IdentityToken, RegistryToken: got.RegistryToken,
	})
}

// allAuth returns every credential of this host. The engine selects the one of
// the registry that it contacts.
func allAuth() (map[string]registry.AuthConfig, error) {
	login, err := loadLogin()
	if err != nil {
		return nil, err
	}
	all, err := login.GetAllCredentials()
	if err != nil {
		return nil, fmt.Errorf("read the credentials of registries: %w", err)
	}
	out := map[string]registry.AuthConfig{}
	for host, got := range all {
		out[host] = registry.AuthConfig{Username: got.Username, Password: got.Password, ServerAddress: got.ServerAddress, IdentityToken: got.IdentityToken, RegistryToken: got.RegistryToken}
	}
	return out, nil
}
