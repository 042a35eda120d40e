package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
)

// optionsBackend returns a backend with settings of a worker, and the settings of the
// containers that it asks the engine for. The engine gets them without GPUs, which this
// host lacks.
func optionsBackend(t *testing.T, d sandboxes.Docker) (*docker.Backend, func() []container.HostConfig) {
	t.Helper()
	var mu sync.Mutex
	var asked []container.HostConfig
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", "/var/run/docker.sock")
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			var body map[string]any
			data, err := io.ReadAll(r.Body)
			if err == nil {
				err = json.Unmarshal(data, &body)
			}
			var create struct{ HostConfig container.HostConfig }
			if err = errors.Join(err, json.Unmarshal(data, &create)); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			mu.Lock()
			asked = append(asked, create.HostConfig)
			mu.Unlock()
			if host, ok := body["HostConfig"].(map[string]any); ok {
				delete(host, "DeviceRequests")
			}
			if data, err = json.Marshal(body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	t.Setenv("DOCKER_HOST", "tcp://"+front.Listener.Addr().String())
	b, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: testenv.Binary(t), StateDir: t.TempDir(), Docker: d}})
	harness.Must(t, err)
	t.Cleanup(b.Close)
	return b, func() []container.HostConfig {
		mu.Lock()
		defer mu.Unlock()
		return asked
	}
}

// TestRuntimeGPUsAndMounts reads the settings of a worker in the calls to the engine, and
// a mounted file in the sandbox.
func TestRuntimeGPUsAndMounts(t *testing.T) {
	image := testenv.Image(t)
	data := t.TempDir()
	harness.Must(t, os.WriteFile(filepath.Join(data, "file"), []byte("of the host"), 0o644))
	harness.Must(t, os.Chmod(data, 0o755))
	for name, c := range map[string]struct {
		settings sandboxes.Docker
		gpus     int
		want     string // of the device request
	}{
		"a number": {sandboxes.Docker{GPUs: 4}, 2, "2 []"},
		"all":      {sandboxes.Docker{AllGPUs: true}, 1, "-1 []"},
		"devices":  {sandboxes.Docker{GPUDevices: []string{"a", "b"}}, 1, "0 [a]"},
		"none":     {sandboxes.Docker{GPUs: 4}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.settings.Runtime, c.settings.Mounts = "runc", []sandboxes.Mount{{Host: data, Guest: "/data"}}
			b, asked := optionsBackend(t, c.settings)
			testenv.Need(t, "docker", b.Check(t.Context()))
			s := spec(image)
			s.Owner, s.GPUs = "options", c.gpus
			sb, err := b.Create(t.Context(), s)
			harness.Must(t, err)
			defer func() { harness.Must(t, sb.Close(context.WithoutCancel(t.Context()))) }()
			host := asked()[len(asked())-1]
			got := ""
			for _, r := range host.DeviceRequests {
				got += fmt.Sprint(r.Count, r.DeviceIDs)
			}
			if strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(c.want, " ", "") || host.Runtime != "runc" {
				t.Errorf("GPUs %q, runtime %q", got, host.Runtime)
			}
			if text, err := sandboxes.ReadFile(t.Context(), sb.Files(), "/data/file", 100); err != nil || string(text) != "of the host" {
				t.Errorf("%q, %v", text, err)
			}
			if err := sb.Files().Write(t.Context(), "/data/new", strings.NewReader(""), 0o644, ""); err == nil {
				t.Error("the mount was written to")
			}
		})
	}
}

// TestSettingsThatTheEngineLacks refuses an unknown runtime at the start, with the known
// ones, a mount of a missing folder, and more GPUs than the worker gives.
func TestSettingsThatTheEngineLacks(t *testing.T) {
	image := testenv.Image(t)
	b, _ := optionsBackend(t, sandboxes.Docker{Runtime: "no-such-runtime"})
	if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), `no runtime "no-such-runtime": want one of`) || !strings.Contains(err.Error(), "runc") {
		t.Errorf("a runtime: %v", err)
	}
	b, _ = optionsBackend(t, sandboxes.Docker{Mounts: []sandboxes.Mount{{Host: "/no/such/folder", Guest: "/data"}}})
	if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "/no/such/folder") {
		t.Errorf("a mount: %v", err)
	}
	b, _ = optionsBackend(t, sandboxes.Docker{GPUDevices: []string{"a"}})
	s := spec(image)
	s.GPUs = 2
	var no *sandboxes.UnsupportedError
	if _, err := b.Create(t.Context(), s); !errors.As(err, &no) || no.Field != "sandbox.gpus" || !strings.Contains(no.Reason, "at most 1") {
		t.Errorf("GPUs: %v", err)
	}
}
