package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/backends/docker"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/sandboxes"
)

// buildFiles returns a build context.
func buildFiles(t *testing.T, files map[string]string) *bytes.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b.Bytes())
}

// once returns text that no earlier run has used, so that no cache has a build
// of it.
func once() string { return time.Now().Format(time.RFC3339Nano) }

func withLimits(t *testing.T, l sandboxes.BuildLimits) *docker.Backend {
	t.Helper()
	b, err := docker.New(docker.Config{Host: sandboxes.Host{Helper: testenv.Binary(t), StateDir: t.TempDir(), Build: l}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	testenv.Need(t, "docker", b.Check(t.Context()))
	return b
}

// ensure makes an image and returns its output. The image is removed when the
// test ends.
func ensure(t *testing.T, b *docker.Backend, how *sandboxes.Build) (string, string, error) {
	t.Helper()
	var said strings.Builder
	ref, err := b.Store().EnsureImage(t.Context(), "", how, func(line string) { fmt.Fprintln(&said, line) })
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", ref).Run() })
	return ref, said.String(), err
}

// inImage returns the files of an image, which may lack a shell.
func inImage(t *testing.T, ref string) map[string]string {
	t.Helper()
	id, err := exec.Command("docker", "create", ref, "none").Output()
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSpace(string(id))
	defer exec.Command("docker", "rm", "-f", name).Run() //nolint:errcheck // cleanup of a test
	data, err := exec.Command("docker", "export", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(io.LimitReader(r, 1<<16))
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(text)
	}
}

func TestADockerfileMayUseFeaturesOfBuildKit(t *testing.T) {
	_, image, _ := backend(t)
	b := withLimits(t, sandboxes.BuildLimits{})
	unique := once()
	how := &sandboxes.Build{Task: "a task", Dockerfile: "docker/Dockerfile", Target: "want", Args: map[string]string{"WORD": "given"}, Tar: buildFiles(t, map[string]string{
		"docker/Dockerfile": "# syntax=docker/dockerfile:1.99\nFROM " + image + ` AS make
ARG WORD=default
RUN --mount=type=cache,target=/cache <<SH
set -e
touch /cache/x
echo said-$WORD-` + unique + `
echo $WORD > /made
SH
FROM scratch AS want
COPY --from=make /made /made
COPY <<DOC /doc
of a here-document
DOC
COPY src /src
FROM want
RUN ["/never"]
`,
		".dockerignore": "src/*.log\n!src/keep.log\n",
		"src/a.txt":     "a", "src/b.log": "b", "src/keep.log": "c",
	})}
	ref, said, err := ensure(t, b, how)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if !strings.Contains(said, "said-given-"+unique) {
		t.Errorf("the command's output was not printed:\n%s", said)
	}
	got := inImage(t, ref)
	if got["made"] != "given\n" || got["doc"] != "of a here-document\n" || got["src/a.txt"] != "a" || got["src/keep.log"] != "c" {
		t.Errorf("got %q", got)
	}
	if _, there := got["src/b.log"]; there {
		t.Error(".dockerignore is not honoured")
	}
	again, said, err := ensure(t, withLimits(t, sandboxes.BuildLimits{}), how) // another worker of this host
	if again != ref || said != "" || err != nil {
		t.Errorf("the same build again: %s, want %s; %v\n%s", again, ref, err, said)
	}
	for name, other := range map[string]sandboxes.Build{
		"target": {Tar: how.Tar, Dockerfile: how.Dockerfile, Target: "make", Args: how.Args},
		"args":   {Tar: how.Tar, Dockerfile: how.Dockerfile, Target: how.Target, Args: map[string]string{"WORD": "other"}},
	} {
		if other, _, err := ensure(t, b, &other); err != nil || other == ref {
			t.Errorf("another %s gives the same image (%v)", name, err)
		}
	}
	all, err := b.Store().BuiltImages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(i sandboxes.BuiltImage) bool { return i.Ref == ref })
	if i < 0 || all[i].Task != "a task" || all[i].InUse || all[i].Size <= 0 || all[i].Size > 1<<20 || time.Since(all[i].Used) > time.Hour {
		t.Errorf("it is listed as %+v", all[max(i, 0)])
	}
}

func TestFilesOfTheSameSizeAreNotTakenForEachOther(t *testing.T) {
	backend(t)
	b := withLimits(t, sandboxes.BuildLimits{})
	unique := once()
	for _, text := range []string{"a" + unique, "b" + unique} {
		ref, said, err := ensure(t, b, &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM scratch\nCOPY f /f\nENV X=" + text + "\n", "f": text})})
		if err != nil || inImage(t, ref)["f"] != text {
			t.Errorf("want %q in the image: %v\n%s", text, err, said)
		}
	}
}

func TestABuildThatFailsSaysItsLastLines(t *testing.T) {
	_, image, _ := backend(t)
	b := withLimits(t, sandboxes.BuildLimits{Time: time.Minute})
	for name, c := range map[string]struct{ file, want string }{
		"command":     {"FROM " + image + "\nRUN echo the-reason; false # " + once() + "\n", "the-reason"},
		"syntax":      {"FROM " + image + "\nRUNN true\n", "RUNN"},
		"copy":        {"FROM scratch\nCOPY nothing /\n", "nothing"},
		"host":        {"FROM " + image + "\nRUN --network=host true\n", "network.host"},
		"privileged":  {"FROM " + image + "\nRUN --security=insecure true\n", "security.insecure"},
		"no such one": {"", "no such file"},
	} {
		files := map[string]string{"Dockerfile": c.file}
		if c.file == "" {
			files = map[string]string{"other": "x"}
		}
		_, _, err := ensure(t, b, &sandboxes.Build{Tar: buildFiles(t, files)})
		var bad *sandboxes.ImageError
		if !errors.As(err, &bad) || bad.Image != "Dockerfile" || bad.Code != "" || !strings.Contains(bad.Reason, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// processes counts the processes of this host with text in their arguments.
func processes(t *testing.T, text string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(strings.ReplaceAll(string(data), "\x00", " "), text) {
			n++
		}
	}
	return n
}

func TestABuildEndsWithTheLastThatWaits(t *testing.T) {
	_, image, _ := backend(t)
	b := withLimits(t, sandboxes.BuildLimits{})
	marker := fmt.Sprintf("sleep 7%d", time.Now().UnixNano()%1e8)
	how := &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nRUN echo begun; " + marker + "\n"})}
	type waiter struct {
		leave context.CancelCauseFunc
		begun chan struct{}
		end   chan error
	}
	left := errors.New("the rollout is cancelled")
	wait := func() waiter {
		ctx, cancel := context.WithCancelCause(t.Context())
		w := waiter{cancel, make(chan struct{}), make(chan error, 1)}
		go func() {
			_, err := b.Store().EnsureImage(ctx, "", how, func(line string) {
				if line == "begun" {
					close(w.begun)
				}
			})
			w.end <- err
		}()
		return w
	}
	first := wait()
	<-first.begun
	second := wait()
	<-second.begun // a joined build replays its earlier lines
	first.leave(left)
	if err := <-first.end; !errors.Is(err, left) {
		t.Errorf("the first ended with %v", err)
	}
	if n := processes(t, marker); n == 0 {
		t.Error("the build ended although a rollout waits for it")
	}
	second.leave(left)
	if err := <-second.end; !errors.Is(err, left) {
		t.Errorf("the second ended with %v", err)
	}
	harness.Eventually(t, "the end of the build", 5*time.Minute, func() bool { return processes(t, marker) == 0 })
}

func TestTheWorkerBoundsBuilds(t *testing.T) {
	_, image, _ := backend(t)
	show := "cat /proc/net/dev; cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null; true # " + once()
	plain := &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nRUN " + show + "\n"})}
	newer := &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nRUN <<X\n" + show + "\nX\n"})}
	_, said, err := ensure(t, withLimits(t, sandboxes.BuildLimits{Network: "none", MemoryBytes: 64 << 20, CPUs: 0.5}), plain)
	if err != nil || strings.Contains(said, "eth0") || !strings.Contains(said, "67108864") {
		t.Errorf("no network and 64 MB: %v\n%s", err, said)
	}
	_, said, err = ensure(t, withLimits(t, sandboxes.BuildLimits{Network: "none"}), newer)
	if err != nil || strings.Contains(said, "eth0") || !strings.Contains(said, "lo:") {
		t.Errorf("no network: %v\n%s", err, said)
	}
	_, said, err = ensure(t, withLimits(t, sandboxes.BuildLimits{MemoryBytes: 64 << 20}), newer)
	kept := err == nil && strings.Contains(said, "67108864")
	refused := err != nil && strings.Contains(err.Error(), "here-document") && strings.Contains(err.Error(), "--build-memory-mb")
	if !kept && !refused {
		t.Errorf("64 MB for a file that needs BuildKit: %v\n%s", err, said)
	}
	_, _, err = ensure(t, withLimits(t, sandboxes.BuildLimits{Time: 500 * time.Millisecond}), &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nRUN sleep 60 # " + once() + "\n"})})
	if err == nil || !strings.Contains(err.Error(), "longer than the 500ms that this worker allows") {
		t.Errorf("half a second: %v", err)
	}
}

// oldEngine puts a proxy in front of the engine that hides its BuildKit.
func oldEngine(t *testing.T) {
	t.Helper()
	throughProxy(t, func(mux *http.ServeMux, _ http.Handler) { mux.Handle("/grpc", http.NotFoundHandler()) })
}

// throughProxy makes new clients reach the engine through a proxy with some routes of
// its own.
func throughProxy(t *testing.T, add func(mux *http.ServeMux, engine http.Handler)) {
	t.Helper()
	socket := "/var/run/docker.sock"
	if host, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok {
		socket = host
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.FlushInterval = -1
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	add(mux, proxy)
	path := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	t.Setenv("DOCKER_HOST", "unix://"+path)
}

func TestAnEngineWithoutBuildKitNamesTheMissingFeature(t *testing.T) {
	testenv.Slow(t)
	_, image, _ := backend(t)
	oldEngine(t)
	b := withLimits(t, sandboxes.BuildLimits{Network: "none"})
	for want, file := range map[string]string{
		"here-document, RUN <<EOF (line 3)": "FROM " + image + "\n# x\nRUN <<EOF\ntrue\nEOF\n",
		"RUN --mount (line 2)":              "FROM " + image + "\nRUN --mount=type=cache,target=/c true\n",
		"COPY --link (line 2)":              "FROM " + image + "\nCOPY --link x /x\n",
	} {
		_, said, err := ensure(t, b, &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": file, "x": "x"})})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "BuildKit") || said != "" {
			t.Errorf("want %q, got %v\n%s", want, err, said)
		}
	}
	unique := once()
	plain := map[string]string{"Dockerfile": "FROM " + image + " AS one\nRUN echo plain-" + unique + " | tee /made\nFROM scratch\nCOPY --from=one /made /made\nCOPY . /all\n", ".dockerignore": "*.log\n", "a": "a", "b.log": "b"}
	ref, said, err := ensure(t, b, &sandboxes.Build{Tar: buildFiles(t, plain)})
	if err != nil || !strings.Contains(said, "plain-"+unique) {
		t.Fatalf("%v\n%s", err, said)
	}
	got := inImage(t, ref)
	if _, there := got["all/b.log"]; there || got["all/a"] != "a" || got["made"] != "plain-"+unique+"\n" {
		t.Errorf("got %q", got)
	}
	_, _, err = ensure(t, b, &sandboxes.Build{Tar: buildFiles(t, map[string]string{"Dockerfile": "FROM " + image + "\nENV MARK=" + unique + "\nRUN echo x > /x\nRUN echo old-reason; false\n"})})
	var bad *sandboxes.ImageError
	if !errors.As(err, &bad) || !strings.Contains(bad.Reason, "old-reason") {
		t.Errorf("a build that fails: %v", err)
	}
	left, err := exec.Command("sh", "-c", "docker images -aq --filter dangling=true | xargs -r docker inspect -f '{{.Config.Env}}'").Output()
	if err != nil || strings.Contains(string(left), unique) {
		t.Errorf("a failed build leaves parts of it: %v", err)
	}
}

// closing is a build context that its owner closes in the middle of the build.
type closing struct {
	*bytes.Reader
	begun  atomic.Int32  // reads of the first byte: the second one is the build's
	built  chan struct{} // closed when the build begins to read
	closed chan struct{}
}

func (c *closing) ReadAt(p []byte, off int64) (int, error) {
	if off == 0 && c.begun.Add(1) == 2 {
		close(c.built)
	}
	if c.begun.Load() < 2 {
		return c.Reader.ReadAt(p, off)
	}
	<-c.closed
	return 0, fs.ErrClosed
}

// TestABuildOutlivesTheFilesOfItsFirstRollout: the rollout that began a build ends and
// closes the files of its task, while another one waits for the same image.
func TestABuildOutlivesTheFilesOfItsFirstRollout(t *testing.T) {
	b := withLimits(t, sandboxes.BuildLimits{})
	files := map[string]string{"Dockerfile": "FROM scratch\nCOPY f /f\n", "f": once()}
	first := &closing{Reader: buildFiles(t, files), built: make(chan struct{}), closed: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.Store().EnsureImage(ctx, "", &sandboxes.Build{Tar: first}, nil)
		ended <- err
	}()
	<-first.built
	type image struct {
		ref string
		err error
	}
	second := make(chan image, 1)
	own := buildFiles(t, files)
	go func() {
		ref, err := b.Store().EnsureImage(t.Context(), "", &sandboxes.Build{Tar: own}, nil)
		second <- image{ref, err}
	}()
	harness.Eventually(t, "another rollout that waits for the build", 5*time.Minute, func() bool { return b.Store().Waiting() == 2 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the first rollout: %v", err)
	}
	close(first.closed)
	if got := <-second; got.err != nil {
		t.Errorf("the second rollout: %v", got.err)
	} else if out, err := exec.Command("docker", "rmi", got.ref).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// unreadable is a build context that can be read once.
type unreadable struct {
	*bytes.Reader
	begun int
	err   error
}

func (c *unreadable) ReadAt(p []byte, off int64) (int, error) {
	if off == 0 {
		c.begun++
	}
	if c.begun > 1 && off > 0 {
		return 0, c.err
	}
	return c.Reader.ReadAt(p, off)
}

// TestFilesThatTheWorkerCannotReadAreNoFaultOfTheTask: another attempt may succeed.
func TestFilesThatTheWorkerCannotReadAreNoFaultOfTheTask(t *testing.T) {
	b := withLimits(t, sandboxes.BuildLimits{})
	files := &unreadable{Reader: buildFiles(t, map[string]string{"Dockerfile": "FROM scratch\nCOPY f /f\n", "f": once()}), err: errors.New("input/output error")}
	_, err := b.Store().EnsureImage(t.Context(), "", &sandboxes.Build{Tar: files}, nil)
	var bad *sandboxes.ImageError
	if errors.As(err, &bad) || !errors.Is(err, files.err) {
		t.Errorf("got %v", err)
	}
}
