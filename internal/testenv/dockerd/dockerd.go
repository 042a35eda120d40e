// Package dockerd runs a second Docker engine for tests: one that listens on loopback
// with TLS and does not have this host's files, as an engine on another host, or one of
// this host with runtimes of the test.
package dockerd

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// Engine is a running engine. Its only image is that of testenv.Image.
type Engine struct {
	Addr   string // its TCP address, with TLS; empty: it has this host's files
	Certs  string // the folder for DOCKER_CERT_PATH; empty: as Addr
	Socket string // its unix socket on this host
	Image  string
}

// arguments are the arguments of every engine.
const arguments = `--bridge none --iptables=false --ip6tables=false --ip-forward=false`

// Start starts an engine, which stops when the test ends. Without Docker or root the test
// is skipped.
func Start(t testing.TB) *Engine {
	t.Helper()
	e, dir := &Engine{Image: testenv.Image(t)}, t.TempDir()
	e.Addr, e.Certs, e.Socket = fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), filepath.Join(dir, "certs"), filepath.Join(dir, "docker.sock")
	must(t, os.Mkdir(e.Certs, 0o700))
	testenv.Certificates(t, e.Certs)
	home, err := os.UserHomeDir()
	must(t, err)
	// Its own files are in /mnt. It has no other file of this user or of the tests.
	e.run(t, `set -e; mount --make-rprivate /; mount --bind "$1" /mnt; shift
for d; do [ ! -d "$d" ] || mount -t tmpfs tmpfs "$d"; done
echo '{}' >/mnt/daemon.json
exec "$0" --config-file /mnt/daemon.json --data-root /mnt/root --exec-root /mnt/exec --pidfile /mnt/pid -H unix:///mnt/docker.sock `+arguments,
		dir, "/tmp", home, top(testenv.Root(t)), top(os.TempDir()), "/run/containerd")
	serve(t, e)
	e.load(t)
	return e
}

// Runtime is a program that runs containers, with its arguments.
type Runtime struct {
	Path string   `json:"path"`
	Args []string `json:"runtimeArgs"`
}

// StartHere is Start for an engine that has this host's files, and further runtimes by
// name.
func StartHere(t testing.TB, runtimes map[string]Runtime) *Engine {
	t.Helper()
	e, dir := &Engine{Image: testenv.Image(t)}, t.TempDir()
	e.Socket = filepath.Join(dir, "docker.sock")
	config, err := json.Marshal(map[string]any{"runtimes": runtimes})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "daemon.json"), config, 0o600))
	e.run(t, `set -e; mount --make-rprivate /; mount -t tmpfs tmpfs /run/containerd
exec "$0" --config-file "$1/daemon.json" --data-root "$1/root" --exec-root "$1/exec" --pidfile "$1/pid" -H "unix://$1/docker.sock" `+arguments, dir)
	e.load(t)
	return e
}

// run starts dockerd by a script, until the test ends. Its mounts are its own, and so is
// its network namespace, since dockerd without a bridge deletes docker0.
func (e *Engine) run(t testing.TB, script string, args ...string) {
	t.Helper()
	program, err := exec.LookPath("dockerd")
	if err == nil && os.Geteuid() != 0 {
		err = errors.New("a second engine needs root")
	}
	testenv.Need(t, "docker", err)
	cmd := exec.Command("unshare", append([]string{"-mn", "sh", "-c", script, program}, args...)...)
	cmd.SysProcAttr = endsWithThread() // also if the tests are killed
	log, err := cmd.StderrPipe()
	must(t, err)
	started, up, ended := make(chan error, 1), make(chan bool, 1), make(chan struct{})
	var said strings.Builder
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the signal comes at the end of the thread that starts the engine
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		for in := bufio.NewScanner(io.TeeReader(log, &said)); in.Scan(); {
			if strings.Contains(in.Text(), "API listen on ") {
				up <- true
			}
		}
		close(up)
		_ = cmd.Wait()
	}()
	must(t, <-started)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-ended
	})
	if !<-up {
		<-ended
		t.Fatalf("dockerd: %s", said.String())
	}
}

// load gives the engine its image.
func (e *Engine) load(t testing.TB) {
	t.Helper()
	load := exec.CommandContext(context.Background(), "sh", "-c", `docker save "$1" | docker --host "unix://$2" load`, "sh", e.Image, e.Socket)
	load.Env = append(load.Environ(), "DOCKER_HOST=", "DOCKER_TLS_VERIFY=", "DOCKER_CERT_PATH=")
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("load %s: %v: %s", e.Image, err, out)
	}
}

// serve is the engine's TCP address: TLS that asks for a certificate of the client, in
// front of the socket.
func serve(t testing.TB, e *Engine) {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(e.Certs, "ca.pem"))
	must(t, err)
	known := x509.NewCertPool()
	known.AppendCertsFromPEM(ca)
	own, err := tls.LoadX509KeyPair(filepath.Join(e.Certs, "server.pem"), filepath.Join(e.Certs, "server-key.pem"))
	must(t, err)
	front, err := tls.Listen("tcp", e.Addr, &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: known, MinVersion: tls.VersionTLS12})
	must(t, err)
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			go relay(c, e.Socket)
		}
	}()
	t.Cleanup(func() { _ = front.Close() }) // the end of the engine ends the connections
}

// relay carries the bytes of a connection to the socket and back. Each side may end its
// direction first.
func relay(c net.Conn, socket string) {
	defer c.Close()
	engine, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer engine.Close()
	go func() {
		_, _ = io.Copy(engine, c) // an end of the connection is its end
		_ = engine.(*net.UnixConn).CloseWrite()
	}()
	_, _ = io.Copy(c, engine)
}

// Environment returns the variables with which a program reaches the engine at an address.
func (e *Engine) Environment(addr string) []string {
	return []string{"DOCKER_HOST=tcp://" + addr, "DOCKER_TLS_VERIFY=1", "DOCKER_CERT_PATH=" + e.Certs}
}

// Use makes the Docker clients of this test reach the engine at an address.
func (e *Engine) Use(t testing.TB, addr string) {
	t.Helper()
	for _, v := range e.Environment(addr) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
}

// Docker runs the docker program with the engine and returns its output.
func (e *Engine) Docker(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "docker", args...)
	cmd.Env = append(cmd.Environ(), "DOCKER_HOST=unix://"+e.Socket, "DOCKER_TLS_VERIFY=", "DOCKER_CERT_PATH=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("docker %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Path returns the path on this host of the file at a path of the engine.
func (e *Engine) Path(there string) string {
	return filepath.Join(filepath.Dir(e.Socket), strings.TrimPrefix(there, "/mnt"))
}

// top returns the first folder of an absolute path.
func top(path string) string {
	return "/" + strings.SplitN(strings.TrimPrefix(path, "/"), "/", 2)[0]
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
