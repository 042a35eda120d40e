// Package kubetest runs a Kubernetes cluster for tests: a real kube-apiserver on a real
// etcd, and a node whose kubelet is a part of this package. The kubelet runs the containers
// of pods in a Docker engine and serves exec with the kubelet's own library. The server
// runs without the node, too. Nothing makes the pods of workloads: there are no controllers.
package kubetest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// Namespace is the namespace in which the cluster's user may make sandboxes.
const Namespace = "rollouts"

// Tokens of the users of the cluster.
const (
	adminToken  = "admin-token"
	workerToken = "worker-token"
)

// Server is a running API server.
type Server struct {
	Config string // file of settings for clients; its user has the role of deploy/kubernetes

	url    string
	dir    string
	cert   tls.Certificate
	client *http.Client
	again  func() // kills the API server and starts it again
}

// Cluster is a running cluster.
type Cluster struct {
	*Server
	Image string // of containers, which the node has

	node *node
}

// programs returns the paths of the cluster's programs.
func programs() (apiserver, etcd string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", "", err
	}
	apiserver = filepath.Join(cache, "turngate", "kubernetes", "kube-apiserver")
	if _, err := os.Stat(apiserver); err != nil {
		return "", "", fmt.Errorf("%w: build it with `make kubernetes`", err)
	}
	if etcd, err = exec.LookPath("etcd"); err != nil {
		return "", "", fmt.Errorf("%w (Debian: etcd-server)", err)
	}
	return apiserver, etcd, nil
}

// Start starts a cluster, which ends with the test. Without its programs or Docker the
// test is skipped.
func Start(t testing.TB) *Cluster {
	t.Helper()
	image := testenv.Image(t)
	c := &Cluster{Server: Serve(t), Image: image}
	c.node = startNode(t, c)
	return c
}

// Serve starts an API server without a node, which ends with the test: it stores objects,
// and nothing runs. Without its programs the test is skipped.
func Serve(t testing.TB) *Server {
	t.Helper()
	apiserver, etcd, err := programs()
	testenv.Need(t, "kubernetes", err)
	c := &Server{dir: t.TempDir()}
	c.identity(t)
	at := func(name string) string { return filepath.Join(c.dir, name) }
	etcdPort, peerPort, port := testenv.FreePort(t), testenv.FreePort(t), testenv.FreePort(t)
	store := fmt.Sprintf("http://127.0.0.1:%d", etcdPort)
	peer := fmt.Sprintf("http://127.0.0.1:%d", peerPort)
	c.run(t, etcd, "--data-dir", at("etcd"), "--unsafe-no-fsync", "--listen-client-urls", store, "--advertise-client-urls", store,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	c.write(t, "tokens", adminToken+",admin,1,system:masters\n"+workerToken+",turngate,2,\n")
	c.again = c.run(t, apiserver, "--etcd-servers", store, "--secure-port", fmt.Sprint(port), "--bind-address", "127.0.0.1",
		"--tls-cert-file", at("cert.pem"), "--tls-private-key-file", at("key.pem"), "--cert-dir", at("certs"),
		"--token-auth-file", at("tokens"), "--authorization-mode", "RBAC", "--kubelet-preferred-address-types", "InternalIP",
		"--service-cluster-ip-range", "10.0.0.0/24", "--service-account-issuer", "https://kubernetes.default.svc",
		"--service-account-key-file", at("accounts.pem"), "--service-account-signing-key-file", at("accounts.pem"), "--endpoint-reconciler-type", "none")
	c.url = fmt.Sprintf("https://127.0.0.1:%d", port)
	roots := x509.NewCertPool()
	roots.AddCert(c.cert.Leaf)
	c.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	t.Cleanup(c.client.CloseIdleConnections)
	c.awaitReady(t)
	c.fill(t)
	c.Config = at("config")
	c.write(t, "config", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: turngate, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: turngate, namespace: %s}}]
current-context: test
`, c.url, at("cert.pem"), workerToken, Namespace))
	return c
}

// Flags are the flags of turngate for this cluster.
func (c *Server) Flags() []string {
	return []string{"--kubernetes", Namespace, "--kubernetes-config", c.Config}
}

// fill makes the namespace and the user's rights, with the files of deploy/kubernetes.
func (c *Server) fill(t testing.TB) {
	t.Helper()
	c.MakeNamespace(t, Namespace)
	for file, resource := range map[string]string{"role.yaml": "roles", "rolebinding.yaml": "rolebindings"} {
		text, err := os.ReadFile(filepath.Join(testenv.Root(t), "deploy/kubernetes", file))
		harness.Must(t, err)
		harness.Must(t, c.send(t.Context(), http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+Namespace+"/"+resource, "application/yaml", text, nil))
	}
}

// MakeNamespace makes a namespace with the objects that the controllers of a whole cluster
// add to it: the account of its pods, and the certificate by which they know the API server.
func (c *Server) MakeNamespace(t testing.TB, name string) {
	t.Helper()
	cert, err := os.ReadFile(filepath.Join(c.dir, "cert.pem"))
	harness.Must(t, err)
	core := "/api/v1/namespaces"
	c.Ask(t, http.MethodPost, core, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	c.Ask(t, http.MethodPost, core+"/"+name+"/serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	c.Ask(t, http.MethodPost, core+"/"+name+"/configmaps", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": string(cert)}})
}

// identity makes the certificate of the API server and of the kubelet, and the key of
// service accounts.
func (c *Server) identity(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	harness.Must(t, err)
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	addresses, err := net.InterfaceAddrs() // pods reach the API server at one of them
	harness.Must(t, err)
	for _, a := range addresses {
		if of, ok := a.(*net.IPNet); ok {
			about.IPAddresses = append(about.IPAddresses, of.IP)
		}
	}
	raw, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	harness.Must(t, err)
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	harness.Must(t, err)
	accounts, err := rsa.GenerateKey(rand.Reader, 2048)
	harness.Must(t, err)
	block := func(kind string, data []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}))
	}
	c.write(t, "cert.pem", block("CERTIFICATE", raw))
	c.write(t, "key.pem", block("PRIVATE KEY", keyBytes))
	c.write(t, "accounts.pem", block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(accounts)))
	c.cert, err = tls.LoadX509KeyPair(filepath.Join(c.dir, "cert.pem"), filepath.Join(c.dir, "key.pem"))
	harness.Must(t, err)
}

func (c *Server) write(t testing.TB, name, text string) {
	t.Helper()
	harness.Must(t, os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600))
}

// run runs a program until the test ends. The end of its output is shown if the test fails.
// again kills it and starts it again.
func (c *Server) run(t testing.TB, program string, args ...string) (again func()) {
	t.Helper()
	log, err := os.Create(filepath.Join(c.dir, filepath.Base(program)+".log"))
	harness.Must(t, err)
	var cmd *exec.Cmd
	start := func() {
		cmd = exec.Command(program, args...)
		cmd.Stdout, cmd.Stderr = log, log
		harness.Must(t, cmd.Start())
	}
	end := func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // it was killed
	}
	start()
	t.Cleanup(func() {
		end()
		log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s: %s", program, text[max(0, len(text)-4000):])
		}
	})
	return func() {
		end()
		start()
	}
}

// Restart kills the API server, which breaks all streams, and starts it again.
func (c *Server) Restart(t testing.TB) {
	t.Helper()
	c.again()
	c.awaitReady(t)
}

func (c *Server) awaitReady(t testing.TB) {
	t.Helper()
	harness.Eventually(t, "the API server", 5*time.Minute, func() bool { return c.Try(t.Context(), http.MethodGet, "/readyz", nil, nil) == nil })
}

// Try sends an object as the administrator, nil for none, and reads the answer into
// another, unless that is nil. The error has the server's words.
func (c *Server) Try(ctx context.Context, method, path string, body, into any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	return c.send(ctx, method, path, "application/json", data, into)
}

func (c *Server) send(ctx context.Context, method, path, kind string, data []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Content-Type", kind)
	res, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// pods is the path of the pods of Namespace.
const pods = "/api/v1/namespaces/" + Namespace + "/pods"

// Pods returns the pods of Namespace.
func (c *Cluster) Pods(t testing.TB) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	harness.Must(t, c.Try(context.WithoutCancel(t.Context()), http.MethodGet, pods, nil, list))
	return list.Items
}

// Delete removes a pod at once, as an administrator would.
func (c *Cluster) Delete(t testing.TB, name string) {
	t.Helper()
	harness.Must(t, c.Try(t.Context(), http.MethodDelete, pods+"/"+name, nil, nil))
}

// Ask sends an object to the API server as the administrator.
func (c *Server) Ask(t testing.TB, method, path string, body any) {
	t.Helper()
	harness.Must(t, c.Try(t.Context(), method, path, body, nil))
}
