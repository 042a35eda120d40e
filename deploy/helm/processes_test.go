package helm_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// TestProcesses starts each component with the arguments of its container, at a NATS server
// and in folders of the test, until its probes find it ready. SIGTERM ends it.
func TestProcesses(t *testing.T) {
	binary, srv, dir := testenv.Binary(t), testenv.StartNATS(t, "alpha"), t.TempDir()
	for _, name := range []string{"credentials", "tokens", "tls"} {
		harness.Must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	testenv.Certificates(t, filepath.Join(dir, "tls"))
	harness.Must(t, os.Rename(filepath.Join(dir, "tls", "server.pem"), filepath.Join(dir, "tls", "tls.crt")))
	harness.Must(t, os.Rename(filepath.Join(dir, "tls", "server-key.pem"), filepath.Join(dir, "tls", "tls.key")))
	tokens := fmt.Appendf(nil, "- {trainer: alpha, sha256: %x, creds: %s}\n", sha256.Sum256([]byte("token")), srv.TrainerCreds("alpha"))
	harness.Must(t, os.WriteFile(filepath.Join(dir, "tokens", "tokens.yaml"), tokens, 0o600))
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // as kubelets do
	all := workloads(t, render(t, "{worker: {sandboxes: [machine]}, console: {enabled: true}, serve: {enabled: true, events: true}}"))
	for component, credential := range map[string]string{"worker": srv.AdmitWorker(t, "turngate-worker-0"), "metrics": srv.OpsCreds(), "console": srv.OpsCreds(), "serve": srv.OpsCreds()} {
		ports := map[string]int{"metrics": testenv.FreePort(t), "https": testenv.FreePort(t)}
		change := strings.NewReplacer(
			"nats://nats:4222", srv.URL(), "/credentials/", dir+"/credentials/", "/tokens/", dir+"/tokens/", "/tls/", dir+"/tls/", "/var/lib/turngate", dir, "$(WORKER)", "turngate-worker-0",
			"=:9464", fmt.Sprintf("=127.0.0.1:%d", ports["metrics"]), "=:8420", fmt.Sprintf("=127.0.0.1:%d", ports["https"]), "127.0.0.1:9480", "127.0.0.1:0")
		var args []string
		for _, arg := range all[component].Spec.Containers[0].Args {
			arg = change.Replace(arg)
			if file, ok := strings.CutPrefix(strings.Replace(arg, "--events=", "--creds=", 1), "--creds="); ok {
				seed, err := os.ReadFile(credential)
				harness.Must(t, err)
				harness.Must(t, os.WriteFile(file, seed, 0o600))
			}
			args = append(args, arg)
		}
		var said bytes.Buffer
		cmd := exec.Command(binary, args...)
		cmd.Stdout, cmd.Stderr = &said, &said
		harness.Must(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test fails
		ready := func() bool {
			for _, p := range []*probe{all[component].Spec.Containers[0].LivenessProbe, all[component].Spec.Containers[0].ReadinessProbe} {
				res, err := client.Get(fmt.Sprintf("%s://127.0.0.1:%d%s", strings.ToLower(p.HTTPGet.Scheme), ports[p.HTTPGet.Port], p.HTTPGet.Path))
				if err != nil {
					return false
				}
				res.Body.Close()
				if res.StatusCode != http.StatusOK {
					return false
				}
			}
			return true
		}
		harness.Eventually(t, component+" that is ready or has ended", 2*time.Minute, func() bool { return len(ended) > 0 || ready() })
		early := len(ended) > 0
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		if err := <-ended; err != nil || early {
			t.Errorf("turngate %s: %v\n%s", strings.Join(args, " "), err, &said)
		}
	}
}
