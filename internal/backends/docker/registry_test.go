package docker_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// registry is a small registry of the distribution protocol. All its images
// have one layer.
type registry struct {
	*httptest.Server
	blobs map[string][]byte
	refs  map[string]string // repository:tag → digest of its manifest
	kinds map[string]string // digest → media type
	limit bool
	user  string // user that must log in to pull; empty: anyone may pull
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

const (
	kindManifest = "application/vnd.docker.distribution.manifest.v2+json"
	kindList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

func newRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{blobs: map[string][]byte{}, refs: map[string]string{}, kinds: map[string]string{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *registry) put(kind string, data []byte) (string, map[string]any) {
	d := digest(data)
	r.blobs[d], r.kinds[d] = data, kind
	return d, map[string]any{"mediaType": kind, "digest": d, "size": len(data)}
}

func (r *registry) ref(name string) string { return strings.TrimPrefix(r.URL, "http://") + "/" + name }

// add adds an image for one architecture. If listed, a manifest list contains
// it.
func (r *registry) add(t *testing.T, name, arch string, listed bool) {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: 1}), func() error { _, err := w.Write([]byte("x")); return err }(), w.Close()); err != nil {
		t.Fatal(err)
	}
	marshal := func(v any) []byte {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	_, l := r.put("application/vnd.docker.image.rootfs.diff.tar", layer.Bytes())
	_, c := r.put("application/vnd.docker.container.image.v1+json", marshal(map[string]any{
		"architecture": arch, "os": "linux", "created": time.Now(), "config": map[string]any{"Labels": map[string]string{"name": name}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer.Bytes())}},
	}))
	d, m := r.put(kindManifest, marshal(map[string]any{"schemaVersion": 2, "mediaType": kindManifest, "config": c, "layers": []any{l}}))
	if listed {
		m["platform"] = map[string]string{"architecture": arch, "os": "linux"}
		d, _ = r.put(kindList, marshal(map[string]any{"schemaVersion": 2, "mediaType": kindList, "manifests": []any{m}}))
	}
	r.refs[name] = d
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", r.ref(name)).Run() })
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	fail := func(status int, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"errors":[{"code":%q,"message":"of a test"}]}`, code)
	}
	if user, _, _ := q.BasicAuth(); r.user != "" && user != r.user {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		fail(http.StatusUnauthorized, "UNAUTHORIZED")
		return
	}
	path := strings.TrimPrefix(q.URL.Path, "/v2/")
	if path == "" {
		return
	}
	if r.limit {
		fail(http.StatusTooManyRequests, "TOOMANYREQUESTS")
		return
	}
	if name, tag, ok := strings.Cut(path, "/manifests/"); ok {
		if d, ok := r.refs[name+":"+tag]; ok {
			tag = d
		}
		path = tag
	} else {
		path = path[strings.LastIndex(path, "/")+1:]
	}
	data, ok := r.blobs[path]
	if !ok {
		fail(http.StatusNotFound, "MANIFEST_UNKNOWN")
		return
	}
	w.Header().Set("Content-Type", r.kinds[path])
	w.Header().Set("Docker-Content-Digest", path)
	w.Header().Set("Content-Length", fmt.Sprint(len(data)))
	if q.Method != http.MethodHead {
		_, _ = w.Write(data)
	}
}

// credentials writes a login file in the form of `docker login`.
func credentials(t *testing.T, host, user, password string) {
	t.Helper()
	dir := t.TempDir()
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
}

func wantImageError(t *testing.T, err error, code, hint string) {
	t.Helper()
	var bad *sandboxes.ImageError
	if !errors.As(err, &bad) || bad.Code != code || !strings.Contains(bad.Reason, hint) {
		t.Errorf("want %s with %q, got %v", code, hint, err)
	}
}

func TestReasonsForNoImageAreDistinguished(t *testing.T) {
	backend(t)
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	other := "arm64"
	if runtime.GOARCH == other {
		other = "amd64"
	}
	b := withLimits(t, sandboxes.BuildLimits{})
	pull := func(ref string) error {
		_, err := b.Store().EnsureImage(t.Context(), ref, nil, nil)
		return err
	}
	build := func(ref string) error {
		_, _, err := ensure(t, b, &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + ref + "\nCOPY Dockerfile /x\n"})})
		return err
	}
	r := newRegistry(t)
	r.add(t, "of/other:list", other, true)
	r.add(t, "of/other:one", other, false)
	r.add(t, "of/here:1", runtime.GOARCH, true)
	for _, from := range []func(string) error{pull, build} {
		wantImageError(t, from(r.ref("no/such:1")), schema.CodeNoImage, "check its name and tag")
		wantImageError(t, from(r.ref("of/other:list")), schema.CodeImageKind, "take an image for")
	}
	wantImageError(t, pull(r.ref("of/other:one")), schema.CodeImageKind, "it is for linux/"+other)
	wantImageError(t, pull(r.ref("of/other:one")), schema.CodeImageKind, "it is for linux/"+other) // the engine has it now
	if _, err := b.Create(t.Context(), spec(r.ref("of/other:one"))); err == nil {
		t.Error("a container of another architecture began")
	}
	var said []string
	if _, err := b.Store().EnsureImage(t.Context(), r.ref("of/here:1"), nil, func(line string) { said = append(said, line) }); err != nil {
		t.Error(err)
	}
	if last := strings.Join(said, "\n"); !strings.HasSuffix(last, "1 of 1 layers, 0.0 of 0.0 MB") {
		t.Errorf("the pull said %q", said)
	}
	r.limit = true
	for _, from := range []func(string) error{pull, build} {
		wantImageError(t, from(r.ref("of/here:2")), schema.CodeImageRate, "docker login")
	}
	private := newRegistry(t)
	private.user = "me"
	private.add(t, "of/mine:1", runtime.GOARCH, false)
	for _, from := range []func(string) error{pull, build} {
		wantImageError(t, from(private.ref("of/mine:1")), schema.CodeImageAuth, "docker login")
	}
	credentials(t, strings.TrimPrefix(private.URL, "http://"), "me", "secret")
	if err := pull(private.ref("of/mine:1")); err != nil {
		t.Error(err)
	}
}

// TestARealRegistry repeats checks of the test registry with the
// docker-registry program.
func TestARealRegistry(t *testing.T) {
	_, image, _ := backend(t)
	path, err := exec.LookPath("docker-registry")
	testenv.Need(t, "registry", err)
	dir, address := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	// The password is "secret".
	users := "me:$2y$05$Oj2NXtmjIE9kwDJfHQ4nZ.3bwXN2Gg6cFgPpSOqBMCtM1qzO6cGqC\n"
	if out, err := exec.Command("htpasswd", "-Bbn", "me", "secret").Output(); err == nil {
		users = string(out)
	}
	config := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\nauth: {htpasswd: {realm: test, path: %s}}\n", dir, address, filepath.Join(dir, "users"))
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "users"), []byte(users), 0o600), os.WriteFile(filepath.Join(dir, "config.yml"), []byte(config), 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "serve", filepath.Join(dir, "config.yml"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	harness.Eventually(t, "the registry", 5*time.Minute, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	b := withLimits(t, sandboxes.BuildLimits{})
	made, _, err := ensure(t, b, &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM scratch\nCOPY Dockerfile /x\nENV A=" + once() + "\n"})})
	if err != nil {
		t.Fatal(err, image)
	}
	ref := address + "/of/mine:1"
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", ref).Run() })
	pull := func(ref string) error { _, err := b.Store().EnsureImage(t.Context(), ref, nil, nil); return err }
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	wantImageError(t, pull(ref), schema.CodeImageAuth, "docker login")
	credentials(t, address, "me", "wrong")
	wantImageError(t, pull(ref), schema.CodeImageAuth, "docker login")
	credentials(t, address, "me", "secret")
	wantImageError(t, pull(ref), schema.CodeNoImage, "check its name and tag")
	if out, err := exec.Command("sh", "-c", "docker tag "+made+" "+ref+" && docker push -q "+ref+" && docker rmi "+ref).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := pull(ref); err != nil {
		t.Error(err)
	}
	wantImageError(t, pull(address+"/of/mine:2"), schema.CodeNoImage, "check its name and tag")
}
