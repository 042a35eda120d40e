package deploy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
)

// system is a project of docker compose that runs until the test ends.
type system struct {
	dir, program string // the folder of compose.yaml, and docker-compose
	env          []string
	ports        map[string]int
}

// TestCompose brings the system up, with images that are made here. Rollouts run in
// local sandboxes and, after the death of a server, in a docker sandbox; Prometheus
// counts them; no service has the credential of another one, and nothing is left.
func TestCompose(t *testing.T) {
	testenv.Slow(t)
	base, s := testenv.Image(t), startSystem(t)
	creds := filepath.Join(t.TempDir(), "trainer-alpha.nk")
	s.compose(t, "cp", "accounts:/keys/creds/trainer-alpha.nk", creds)
	submit := func(n int, args ...string) {
		t.Helper()
		argv := append([]string{"run", "--nats", s.nats(), "--creds", creds, "--agent", "mini", "-n", fmt.Sprint(n), "-o", "json", "--out", filepath.Join(t.TempDir(), "job")}, args...)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, testenv.Binary(t), append(argv, filepath.Join(testenv.Root(t), "examples", "tasks", "hello"))...)
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("turngate %v: %v\n%s%s", argv, err, out, &said)
		}
		var results []schema.Result
		harness.Must(t, json.Unmarshal(out, &results))
		for _, r := range results {
			if r.Reward == nil || *r.Reward != 1 || len(results) != n {
				t.Errorf("got %s", out)
			}
		}
	}
	// Until a worker of a kind is there, its sandboxes are refused.
	harness.Eventually(t, "all workers are ready", 2*time.Minute, func() bool { return s.query(t, `sum(turngate_worker_ready)`) == "3" })
	submit(2, "--sandbox", "local")
	s.compose(t, "kill", "n2")
	submit(1, "--sandbox", "docker", "--image", base)

	for query, want := range map[string]string{
		`sum(turngate_rollouts_total{status="done"})`: "3",
		`sum(turngate_worker_ready)`:                  "3",
		`max(turngate_queue_up)`:                      "1",
		`count(up{job="turngate"} == 1)`:              "4",
	} {
		harness.Eventually(t, query+" = "+want, time.Minute, func() bool { return s.query(t, query) == want })
	}
	var rules struct {
		Data struct {
			Groups []struct{ Rules []struct{ Name string } }
		}
	}
	s.prometheus(t, "/api/v1/rules", &rules)
	read := 0
	for _, g := range rules.Data.Groups {
		read += len(g.Rules)
	}
	if want := len(alerts(t)); read != want {
		t.Errorf("Prometheus has %d alerts, want %d", read, want)
	}

	link := regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?token=\S+`).FindString(s.compose(t, "logs", "--no-log-prefix", "console"))
	jar, err := cookiejar.New(nil)
	harness.Must(t, err)
	page, err := (&http.Client{Jar: jar}).Get(link)
	harness.Must(t, err)
	text, err := io.ReadAll(page.Body)
	_ = page.Body.Close()
	if err != nil || page.StatusCode != http.StatusOK || !strings.Contains(string(text), "turngate") {
		t.Errorf("the console at %q answers %d (%v): %s", link, page.StatusCode, err, text)
	}

	for service, want := range map[string]string{
		"w1": "/var/lib/turngate/worker-w1.nk", "w2": "/var/lib/turngate/worker-w2.nk", "d1": "/credentials/worker-d1.nk",
		"queues": "/credentials/ops.nk", "console": "/credentials/ops.nk",
	} {
		got := s.compose(t, "exec", "-T", service, "/bin/sh", "-c", `find / -name "*.nk" -o -name cluster.conf 2>/dev/null; true`)
		if strings.TrimSpace(got) != want {
			t.Errorf("%s has the credentials %q, want %s alone", service, got, want)
		}
	}
	rights := s.compose(t, "exec", "-T", "w1", "/bin/sh", "-c", `grep -E "^(Uid|CapBnd|NoNewPrivs):" /proc/self/status | tr -s "\t\n" "  "; touch /etc/x 2>&1; true`)
	if !regexp.MustCompile(`Uid: 10001 .*CapBnd: 0{16} NoNewPrivs: 1`).MatchString(rights) || !strings.Contains(rights, "Read-only file system") {
		t.Errorf("w1 has the rights %s", rights)
	}
}

// startSystem starts all services. When the test ends it removes them, and checks that
// nothing is left.
func startSystem(t *testing.T) *system {
	t.Helper()
	base := testenv.Image(t)
	prometheus, err := exec.LookPath("prometheus")
	testenv.Need(t, "prometheus", err)
	cache, err := os.UserCacheDir()
	harness.Must(t, err)
	program, err := exec.LookPath("docker-compose")
	if err != nil { // .ci/run makes it
		program, err = exec.LookPath(filepath.Join(cache, "turngate", "docker-compose"))
	}
	testenv.Need(t, "compose", err)

	files, id := built(t), fresh()
	image := func(name, from, file, path string) string {
		t.Helper()
		dir, image := t.TempDir(), "turngate-test-"+name+":"+id
		harness.Must(t, exec.Command("cp", file, filepath.Join(dir, "program")).Run())
		harness.Must(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM "+from+"\nCOPY program "+path+"\nENTRYPOINT [\""+path+"\"]\n"), 0o600))
		if out, err := exec.Command("docker", "build", "-q", "-t", image, dir).CombinedOutput(); err != nil {
			t.Fatalf("docker build %s: %v\n%s", image, err, out)
		}
		return image
	}
	s := &system{dir: filepath.Join(files, "deploy", "compose"), program: program, ports: map[string]int{}}
	state := t.TempDir()
	s.env = append(os.Environ(), "COMPOSE_PROJECT_NAME=turngate-test-"+id, "COMPOSE_PROFILES=docker", "BASE="+base,
		"IMAGE=turngate-test-main:"+id, "WORKER_IMAGE=turngate-test-worker:"+id, "D1_STATE="+state,
		"NATS_IMAGE="+image("nats", "scratch", testenv.NATSServer(t), "/nats-server"), "PROMETHEUS_IMAGE="+image("prometheus", base, prometheus, "/bin/prometheus"))
	for _, name := range []string{"N1", "N2", "N3", "CONSOLE", "PROMETHEUS"} {
		s.ports[name] = testenv.FreePort(t)
		s.env = append(s.env, fmt.Sprintf("%s_PORT=%d", name, s.ports[name]))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.compose(t, "ps", "-a") + s.compose(t, "logs", "--tail", "50"))
		}
		s.compose(t, "stop")
		// root of the container owns the files of d1
		s.compose(t, "run", "--rm", "--no-deps", "-T", "--entrypoint", "/bin/sh", "d1", "-c", `rm -rf "$TURNGATE_STATE"/*`)
		s.compose(t, "down", "-v", "--rmi", "all")
		for _, kind := range [][]string{{"ps", "-aq"}, {"volume", "ls", "-q"}, {"network", "ls", "-q"}} {
			out, err := exec.Command("docker", append(kind, "--filter", "label=com.docker.compose.project=turngate-test-"+id)...).Output()
			if err != nil || len(out) > 0 {
				t.Errorf("docker %v: %v\n%s", kind, err, out)
			}
		}
	})
	s.compose(t, "up", "-d", "--build")
	return s
}

// compose runs a command of docker compose and returns its output.
func (s *system) compose(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("docker compose %v: %v\n%s%s", args, err, out, &said)
		if args[0] == "up" {
			t.FailNow()
		}
	}
	return string(out)
}

// nats has the URLs of the servers on this host.
func (s *system) nats() string {
	return fmt.Sprintf("nats://127.0.0.1:%d,nats://127.0.0.1:%d,nats://127.0.0.1:%d", s.ports["N1"], s.ports["N2"], s.ports["N3"])
}

// query returns the value of the only series of a query; empty: there is none yet.
func (s *system) query(t *testing.T, query string) string {
	t.Helper()
	var answer struct {
		Data struct{ Result []struct{ Value []any } }
	}
	s.prometheus(t, "/api/v1/query?query="+url.QueryEscape(query), &answer)
	if len(answer.Data.Result) != 1 || len(answer.Data.Result[0].Value) != 2 {
		return ""
	}
	return fmt.Sprint(answer.Data.Result[0].Value[1])
}

func (s *system) prometheus(t *testing.T, path string, answer any) {
	t.Helper()
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", s.ports["PROMETHEUS"], path))
	harness.Must(t, err)
	defer r.Body.Close()
	harness.Must(t, json.NewDecoder(r.Body).Decode(answer))
}
